//! An embeddable engine for LLM agent threads
