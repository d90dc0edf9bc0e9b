//! Every operation on every engine present: against goldens, generated cases, and its own promises.

#[cfg(feature = "emulator")]
mod damage;
mod devices;
mod gdn;
mod gqa_decode;
mod nvfp4_context;
mod nvfp4_pre_attention;
mod programs;
#[cfg(feature = "cuda")]
mod two_gpus;
