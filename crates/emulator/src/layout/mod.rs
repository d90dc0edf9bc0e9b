//! Layouts: where operands, fragments and copies put their bytes, as pure functions of addresses and descriptors.
