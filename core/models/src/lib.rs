//! Models: a request in, a stream of model events out
