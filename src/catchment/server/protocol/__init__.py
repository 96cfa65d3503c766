"""Messages of Arrow Flight and Flight SQL; `make proto` generates the modules from the `.proto`
files in this folder.
"""
