"""Foundation: time, files, identities, settings, events, crash points. Imports nothing above it but
`errors`.
"""
