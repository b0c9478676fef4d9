//! Fake peers for tests
