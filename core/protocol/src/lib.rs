//! Every message of Raddle's wire, typed
