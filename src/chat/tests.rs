//! Templates in the manner of well-known models, and what becomes of conversations in them.
