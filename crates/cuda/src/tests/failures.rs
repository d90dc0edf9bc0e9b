//! A failure injected at every single driver call of a bind and a launch.

use std::sync::Arc;

use bakewell_core::{Buffer, Error, Memory, Result, Runtime, Stream};

use super::{config, open, program, two_devices};
use crate::CudaRuntime;
use crate::mock::{Alive, RecordingDriver};

/// What a bind and a launch do: workspace, its content, load, launch.
fn bind_and_launch(runtime: &Arc<CudaRuntime>) -> Result<()> {
    let workspace = Buffer::new(runtime.clone(), 64)?;
    workspace.fill(0)?;
    let kernel = runtime.load(&program(b"\x7fELF", 65_536))?;
    runtime.launch(kernel, &config(), &[0; 24], Stream::DEFAULT)?;
    runtime.synchronize(Stream::DEFAULT)
}

/// Runs with the call after `n` more failing; gives the outcome and the failing call's name, `None` when all succeeded.
fn run(n: usize, caller: Option<usize>) -> Option<(Result<()>, &'static str, Arc<RecordingDriver>)> {
    let driver = two_devices();
    let runtime = open(&driver, 0);
    driver.make_current(caller);
    driver.fail_after(n, 999);
    let outcome = bind_and_launch(&runtime);
    if driver.take_pending_failure() {
        outcome.unwrap();
        return None;
    }
    let failed = driver.take_names()[n];
    assert_eq!(driver.current(), caller, "{failed} left another context current");
    drop(runtime);
    assert_eq!(driver.current(), caller);
    Some((outcome, failed, driver))
}

#[test]
fn every_failing_call_gives_a_typed_error_restores_the_context_and_leaks_nothing() {
    for caller in [None, Some(0), Some(1)] {
        let mut failed_calls = 0;
        while let Some((outcome, failed, driver)) = run(failed_calls, caller) {
            failed_calls += 1;
            let freed = Alive { allocations: usize::from(failed == "cuMemFree_v2"), ..Alive::default() };
            // The free itself is tried after the wait, and after a context that could not be entered there is no free.
            let entering_free = outcome.is_ok() && failed.starts_with("cuCtx") && driver.alive().allocations == 1;
            assert!(driver.alive() == freed || entering_free, "{failed}: {:?}", driver.alive());
            match outcome {
                Err(Error::Driver { call, code: 999, name, .. }) => {
                    assert_eq!((call, name.as_str()), (failed, "CUDA_ERROR_UNKNOWN"));
                }
                // A refused look at the workspace's place is an argument error that carries the driver's words.
                Err(Error::Argument { given, .. }) => assert!(given.starts_with(failed), "{given}"),
                // Restoring is tried twice, and giving memory back has nobody to tell.
                Ok(()) => assert!(matches!(
                    failed,
                    "cuCtxSetCurrent" | "cuCtxGetCurrent" | "cuCtxSynchronize" | "cuMemFree_v2"
                )),
                Err(other) => panic!("{failed}: {other}"),
            }
        }
        assert!(failed_calls >= 15, "only {failed_calls} calls were tried");
    }
}

#[test]
fn opening_survives_what_is_only_told_to_people_and_leaks_nothing_otherwise() {
    let mut survived = Vec::new();
    for n in 0.. {
        let driver = two_devices();
        driver.fail_after(n, 999);
        let outcome = CudaRuntime::with_driver(driver.clone(), 0);
        if driver.take_pending_failure() {
            break;
        }
        let failed = driver.take_calls()[n].clone();
        match outcome {
            Ok(runtime) => {
                drop(runtime);
                survived.push(failed.clone());
            }
            Err(error) => assert!(matches!(error, Error::Driver { code: 999, .. }), "{failed}: {error}"),
        }
        assert_eq!(driver.alive(), Alive::default(), "{failed}");
    }
    let told = ["SmClockKhz", "MemoryClockKhz", "MemoryBusBits"];
    assert_eq!(survived, told.map(|attribute| format!("cuDeviceGetAttribute({attribute})")));
}

#[test]
fn the_program_is_named_where_one_is_concerned() {
    let driver = two_devices();
    let runtime = open(&driver, 0);
    driver.fail_after(2, 999);
    let error = runtime.load(&program(b"\x7fELF", 0)).unwrap_err();
    assert_eq!(error.to_string(), "cuModuleLoadData failed with 999 (CUDA_ERROR_UNKNOWN) for sm90/gqa_decode-fake");
    // A failed load is not remembered.
    let kernel = runtime.load(&program(b"\x7fELF", 0)).unwrap();
    driver.fail_after(2, 31_337);
    let error = runtime.launch(kernel, &config(), &[], Stream::DEFAULT).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cuLaunchKernelEx failed with 31337 (a code this driver does not name) for sm90/gqa_decode-fake"
    );
}

#[test]
fn a_panic_in_the_middle_restores_the_context_too() {
    let driver = two_devices();
    let runtime = open(&driver, 0);
    driver.make_current(Some(1));
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        runtime.call("", || -> crate::driver::Answer<()> { panic!("on purpose") })
    }));
    assert!(outcome.is_err());
    assert_eq!(driver.current(), Some(1));
    assert_eq!(runtime.name(), "cuda:0");
}
