"""Arrow Flight and Flight SQL on the wire: messages, headers and request ids.

`make proto` generates the modules of messages from the `.proto` files in this folder.
"""
