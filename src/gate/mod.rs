//! stub
pub(crate) mod hash;
