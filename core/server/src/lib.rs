//! Connections, dispatch, outboxes and transports
