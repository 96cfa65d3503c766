"""The messages of Arrow Flight and Flight SQL: `make proto` makes the modules from the `.proto` files beside them."""
