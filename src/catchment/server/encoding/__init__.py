"""Flight messages and Arrow batches as bytes: encoding, decoding, and bounds on their sizes."""
