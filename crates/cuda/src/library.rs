//! Is the driver library there? Asked before any other call, and answered without a panic.
//!
//! cudarc's own loader panics when the library or a symbol is missing, and its functions return an
//! enumeration that a newer driver can leave. So the library is opened and every symbol resolved
//! here, once, with cudarc's types for the arguments and plain numbers for the results. This also
//! keeps the crate independent of whether another crate makes cudarc link the driver.

use bakewell_core::{Error, Result};
use libloading::Library;

/// Names and places, in the order in which they are tried. A bare name is left to the system's loader.
#[cfg(not(windows))]
const CANDIDATES: &[&str] = &[
    "libcuda.so.1",
    "libcuda.so",
    "/usr/lib/wsl/lib/libcuda.so.1",
    "/run/opengl-driver/lib/libcuda.so.1",
    "/usr/local/nvidia/lib64/libcuda.so.1",
];
#[cfg(windows)]
const CANDIDATES: &[&str] = &["nvcuda.dll"];

/// Opens the driver library.
///
/// # Errors
/// [`Error::NoDriver`] with every place and the loader's words.
pub(crate) fn open() -> Result<Library> {
    open_first(CANDIDATES)
}

fn open_first(candidates: &[&str]) -> Result<Library> {
    let mut refusals: Vec<(&str, String)> = Vec::new();
    for &candidate in candidates {
        // SAFETY: opening runs the library's initialisers. The candidates are the names under which
        // NVIDIA installs its driver, whose initialisers ask nothing of the process.
        match unsafe { Library::new(candidate) } {
            Ok(library) => return Ok(library),
            Err(error) => {
                let said = one_line(&error);
                let said =
                    said.strip_prefix(candidate).map_or(said.as_str(), |rest| rest.trim_start_matches([':', ' ']));
                refusals.push((candidate, said.to_owned()));
            }
        }
    }
    Err(Error::NoDriver { searched: told(&refusals) })
}

/// Where it was looked, and what the loader said: once where it said the same about several.
fn told(refusals: &[(&str, String)]) -> String {
    let groups = refusals.chunk_by(|a, b| a.1 == b.1).map(|group| {
        let names: Vec<&str> = group.iter().map(|(name, _)| *name).collect();
        format!("{} ({})", names.join(", "), group[0].1)
    });
    format!("looked for {}", groups.collect::<Vec<_>>().join("; "))
}

/// Address of a driver function.
///
/// # Errors
/// [`Error::NoDriver`] that names the symbol: the library is older than CUDA 12.4.
///
/// # Safety
/// `F` is the function's type, a function pointer. The pointer must not outlive `library`.
pub(crate) unsafe fn symbol<F: Copy>(library: &Library, name: &str) -> Result<F> {
    // SAFETY: the caller names the right type.
    match unsafe { library.get::<F>(name.as_bytes()) } {
        Ok(symbol) => Ok(*symbol),
        Err(error) => Err(Error::NoDriver {
            searched: format!(
                "the library that was found lacks {name} ({}); the driver of CUDA 12.4 or newer has it",
                one_line(&error)
            ),
        }),
    }
}

/// The loader's message, which a `source()` may carry, without line breaks.
fn one_line(error: &libloading::Error) -> String {
    let text = match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    };
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_an_error_that_says_where_it_looked_and_what_the_loader_said() {
        let error = open_first(&["libbakewell-absent-1.so", "/nowhere/libbakewell-absent-2.so"]).err().unwrap();
        let text = error.to_string();
        assert!(matches!(error, Error::NoDriver { .. }));
        assert!(
            text.contains("libbakewell-absent-1.so") && text.contains("/nowhere/libbakewell-absent-2.so"),
            "{text}"
        );
        assert!(!text.contains('\n'));
        #[cfg(target_os = "linux")]
        assert!(text.contains("No such file"), "the loader's reason is missing: {text}");
    }

    #[test]
    fn the_same_refusal_is_told_once_and_another_is_kept() {
        let refusals = [("a", "absent".to_owned()), ("b", "absent".to_owned()), ("c", "wrong class".to_owned())];
        assert_eq!(told(&refusals), "looked for a, b (absent); c (wrong class)");
    }

    /// An old driver lacks symbols; the C library stands in for one.
    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn a_missing_symbol_is_an_error_that_names_it() {
        let library = open_first(&["libc.so.6"]).unwrap();
        // SAFETY: the symbol does not exist, so no pointer is made.
        let error = unsafe { symbol::<unsafe extern "C" fn() -> u32>(&library, "cuTensorMapEncodeTiled") }.unwrap_err();
        assert!(error.to_string().contains("lacks cuTensorMapEncodeTiled"), "{error}");
    }
}
