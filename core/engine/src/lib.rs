//! Threads, turns and approvals
