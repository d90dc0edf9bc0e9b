//! Numbers: formats, conversions, arithmetic and matrix products as pure functions of bits.
//!
//! | module | content |
//! |---|---|
//! | [`format`](mod@format) | f16 bf16 tf32 e4m3 e5m2 e2m3 e3m2 e2m1 ue8m0 ue4m3: exact decoding, single-rounding narrowing |
//! | [`arith`] | add mul fma div sqrt in every rounding mode, 16-bit arithmetic, min/max, ftz, sat |
//! | [`convert`] | `cvt`: packed pairs, scales, stochastic, integers |
//! | [`approx`] | ex2 lg2 rcp rsqrt sqrt sin cos tanh and the approximate divisions |
//! | [`dot`] | matrix products under the reference or a hardware accumulation model |

mod aligned;
pub mod approx;
pub mod arith;
pub mod convert;
pub mod dot;
mod exact;
pub mod format;
