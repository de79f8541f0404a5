//! Integration tests, one binary so that the library links once.
