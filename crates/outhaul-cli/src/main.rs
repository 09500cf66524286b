//! The outhaul binary.
fn main() {}
