//! `cargo xtask toolchain`: the pinned kernel compiler, from PyPI wheels into `target/toolchain`.
//!
//! Versions and wheel digests stand in `toolchain.txt` only. An installation is used when each pinned package is
//! there in that version with every file of its record in full length; a fresh one is verified byte by byte.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use bakewell_core::program::Sha256Hex;
use indicatif::{ProgressBar, ProgressStyle};

use crate::workspace::Workspace;

const REQUIREMENTS: &str = include_str!("../toolchain.txt");

/// A complete installation.
#[derive(Clone, Debug)]
pub(crate) struct Toolchain {
    bin: PathBuf,
}

impl Toolchain {
    /// Path of a tool: `nvcc`, `ptxas`, `cuobjdump`.
    pub(crate) fn tool(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }
}

/// Pinned version of each package.
pub(crate) fn versions() -> BTreeMap<String, String> {
    REQUIREMENTS
        .lines()
        .filter(|line| !line.trim_start().starts_with(['#', '-']))
        .filter_map(|line| line.trim_end_matches(['\\', ' ']).split_once("=="))
        .map(|(package, version)| (package.to_owned(), version.to_owned()))
        .collect()
}

/// The installation, provisioned first if it is not complete.
pub(crate) fn ensure(workspace: &Workspace) -> Result<Toolchain> {
    let folder = workspace.toolchain();
    if let Err(reason) = verify(&folder, Depth::Sizes) {
        eprintln!("the pinned toolchain is not in {}: {reason}", folder.display());
        provision(&folder)?;
    }
    Ok(Toolchain { bin: folder.join("nvidia/cu13/bin") })
}

/// What a file of an installation is compared with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    Sizes,
    Digests,
}

/// Every pinned package is there in its version, and every file it recorded.
fn verify(folder: &Path, depth: Depth) -> Result<()> {
    for (package, version) in versions() {
        let record = folder.join(format!("{}-{version}.dist-info/RECORD", package.replace('-', "_")));
        let record =
            std::fs::read_to_string(&record).ok().with_context(|| format!("{package} {version} is missing"))?;
        for (path, digest, bytes) in record.lines().filter_map(record_line) {
            let path = folder.join(path);
            let found = std::fs::metadata(&path).map(|meta| meta.len()).unwrap_or(u64::MAX);
            if found != bytes {
                bail!("{} is missing or not {bytes} bytes", path.display());
            }
            if depth == Depth::Digests && Sha256Hex::of(&std::fs::read(&path)?).as_str() != digest {
                bail!("{} has another digest than its wheel records", path.display());
            }
        }
    }
    Ok(())
}

/// Path, digest in hexadecimal and size of a line of a wheel's `RECORD`; lines without digest describe installer files.
fn record_line(line: &str) -> Option<(&str, String, u64)> {
    let mut fields = line.rsplitn(3, ',');
    let bytes = fields.next()?.parse().ok()?;
    let digest = fields.next()?.strip_prefix("sha256=")?;
    let path = fields.next()?.trim_matches('"');
    // pip rewrites paths of files that it moved; those inside the folder are ours.
    (!path.starts_with("..")).then_some((path, hex_of_base64(digest)?, bytes))
}

/// URL-safe base64 without padding to hexadecimal.
fn hex_of_base64(text: &str) -> Option<String> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut hex = String::new();
    let (mut bits, mut count) = (0u32, 0);
    for byte in text.bytes() {
        bits = bits << 6 | ALPHABET.iter().position(|&letter| letter == byte)? as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            hex += &format!("{:02x}", (bits >> count) as u8);
        }
    }
    Some(hex)
}

fn provision(folder: &Path) -> Result<()> {
    let python = find_python()?;
    let parent = folder.parent().context("the toolchain folder has no parent")?;
    let partial = parent.join(format!("toolchain.partial-{}", std::process::id()));
    let requirements = parent.join(format!("toolchain.partial-{}.txt", std::process::id()));
    std::fs::create_dir_all(&partial)?;
    std::fs::write(&requirements, REQUIREMENTS)?;
    let installed = install(python, &partial, &requirements).and_then(|()| verify(&partial, Depth::Digests));
    std::fs::remove_file(&requirements)?;
    if let Err(error) = installed {
        std::fs::remove_dir_all(&partial)?;
        return Err(error);
    }
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    std::fs::rename(&partial, folder)?;
    Ok(())
}

fn find_python() -> Result<&'static str> {
    for python in ["python3", "python"] {
        let pip = Command::new(python).args(["-m", "pip", "--version"]).output();
        match pip {
            Ok(output) if output.status.success() => return Ok(python),
            Ok(_) => bail!(
                "{python} has no pip. Install it (Debian: apt-get install python3-pip) to provision the kernel compiler; \
                 building and using the crates needs neither"
            ),
            Err(_) => {}
        }
    }
    bail!(
        "no Python on the path: the kernel compiler comes as PyPI wheels. Install Python 3 with pip \
         (Debian: apt-get install python3-pip); building and using the crates needs neither"
    )
}

fn install(python: &str, target: &Path, requirements: &Path) -> Result<()> {
    let bar = ProgressBar::new(versions().len() as u64).with_style(
        ProgressStyle::with_template("{spinner} toolchain {bar:30} {pos}/{len} {wide_msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    bar.enable_steady_tick(std::time::Duration::from_millis(200));
    let mut pip = Command::new(python)
        .args(["-m", "pip", "install", "--no-deps", "--no-compile", "--only-binary", ":all:", "--require-hashes"])
        .args(["--progress-bar", "off", "--disable-pip-version-check", "--root-user-action", "ignore"])
        .arg("--target")
        .arg(target)
        .arg("--requirement")
        .arg(requirements)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut errors = pip.stderr.take().context("pip's stderr")?;
    let errors = std::thread::spawn(move || {
        let mut text = String::new();
        errors.read_to_string(&mut text).map(|_| text)
    });
    for line in BufReader::new(pip.stdout.take().context("pip's stdout")?).lines() {
        let line = line?;
        if line.starts_with("Collecting") {
            bar.inc(1);
        }
        bar.set_message(line.trim().to_owned());
    }
    let status = pip.wait()?;
    bar.finish_and_clear();
    if !status.success() {
        let errors = errors.join().ok().and_then(Result::ok).unwrap_or_default();
        bail!("pip could not install the pinned kernel compiler ({status}):\n{}", errors.trim_end());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_requirement_is_pinned_with_a_digest_per_host_architecture() {
        let versions = versions();
        assert_eq!(versions.len(), 7);
        assert_eq!(versions["nvidia-cuda-nvcc"], "13.5.37");
        assert_eq!(REQUIREMENTS.matches("--hash=sha256:").count(), 2 * versions.len());
    }

    #[test]
    fn wheel_digests_are_read_as_hexadecimal() {
        let (path, digest, bytes) =
            record_line("nvidia/abc.txt,sha256=ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0,3").unwrap();
        assert_eq!((path, bytes), ("nvidia/abc.txt", 3));
        assert_eq!(digest, Sha256Hex::of(b"abc").as_str());
        assert!(record_line("nvidia-1.dist-info/RECORD,,").is_none());
    }

    #[test]
    fn an_incomplete_installation_is_not_taken() {
        let folder = std::env::temp_dir().join(format!("xtask-toolchain-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let missing = verify(&folder, Depth::Sizes).unwrap_err().to_string();
        assert!(missing.contains("is missing"), "{missing}");
        for (package, version) in versions() {
            let info = folder.join(format!("{}-{version}.dist-info", package.replace('-', "_")));
            std::fs::create_dir_all(&info).unwrap();
            let file = format!("{package}.bin");
            std::fs::write(folder.join(&file), "abc").unwrap();
            let line = format!("{file},sha256=ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0,3\n");
            std::fs::write(info.join("RECORD"), line).unwrap();
        }
        verify(&folder, Depth::Digests).unwrap();
        std::fs::write(folder.join("nvidia-nvvm.bin"), "abd").unwrap();
        verify(&folder, Depth::Sizes).unwrap();
        let changed = verify(&folder, Depth::Digests).unwrap_err().to_string();
        assert!(changed.contains("another digest"), "{changed}");
        std::fs::write(folder.join("nvidia-nvvm.bin"), "ab").unwrap();
        let short = verify(&folder, Depth::Sizes).unwrap_err().to_string();
        assert!(short.contains("not 3 bytes"), "{short}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
