"""Foundation: time, files, identities, settings, events, crash points. Imports only `errors`."""
