//! Compiles one unit: rendered sources to PTX, and the cubin from exactly that PTX.
//!
//! All compiler flags of the project stand here. Commands run in the workspace root with relative paths, so that no
//! path of a machine reaches the output.

use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result, bail};

use crate::render;
use crate::resources::{self, Measured};
use crate::sources::{self, Closure};
use crate::toolchain::Toolchain;
use crate::workspace::{Unit, Workspace};

/// Flags of the step from CUDA C++ to PTX.
const PTX_FLAGS: &[&str] = &["-std=c++20", "-O3", "-DNDEBUG", "-Werror=all-warnings", "-Ikernels"];
/// Flags of the step from PTX to cubin.
const CUBIN_FLAGS: &[&str] = &["-O3", "-v"];

/// A compiled unit.
#[derive(Clone, Debug)]
pub(crate) struct Compiled {
    pub(crate) ptx: Vec<u8>,
    pub(crate) cubin: Vec<u8>,
    pub(crate) measured: Measured,
}

/// Arguments of both steps as the manifest records them.
pub(crate) fn flags(unit: &Unit) -> Vec<String> {
    let tool = |name: &str, arguments: Vec<String>| [vec![name.to_owned()], arguments].concat();
    [tool("nvcc", ptx_arguments(unit)), tool("ptxas", cubin_arguments(unit))].concat()
}

fn ptx_arguments(unit: &Unit) -> Vec<String> {
    let folder = unit.folder();
    let mut arguments = vec!["-ptx".to_owned(), format!("-arch={}", unit.arch.target())];
    arguments.extend(PTX_FLAGS.iter().map(|flag| flag.to_string()));
    arguments.extend([
        format!("-I{folder}"),
        format!("{folder}/{}", render::TRANSLATION_UNIT),
        "-o".into(),
        format!("{folder}/program.ptx"),
    ]);
    arguments
}

fn cubin_arguments(unit: &Unit) -> Vec<String> {
    let folder = unit.folder();
    let mut arguments = vec![format!("-arch={}", unit.arch.target())];
    arguments.extend(CUBIN_FLAGS.iter().map(|flag| flag.to_string()));
    arguments.extend([format!("{folder}/program.ptx"), "-o".into(), format!("{folder}/program.cubin")]);
    arguments
}

/// Renders, compiles and measures a unit.
pub(crate) fn compile(
    workspace: &Workspace,
    toolchain: &Toolchain,
    unit: &Unit,
    closure: &Closure,
) -> Result<Compiled> {
    let folder = workspace.root.join(unit.folder());
    std::fs::create_dir_all(&folder)?;
    for (name, text) in render::files(unit) {
        std::fs::write(folder.join(name), text)?;
    }
    let dependencies = format!("{}/program.d", unit.folder());
    run(Command::new(toolchain.tool("nvcc"))
        .args(ptx_arguments(unit))
        .args(["-MD", "-MF", &dependencies])
        .current_dir(&workspace.root))?;
    compare_dependencies(workspace, unit, closure, &std::fs::read_to_string(workspace.root.join(dependencies))?)?;

    let assembled =
        run(Command::new(toolchain.tool("ptxas")).args(cubin_arguments(unit)).current_dir(&workspace.root))?;
    let messages = String::from_utf8_lossy(&assembled.stderr).into_owned();
    accept(unit, &messages)?;
    let ptx = std::fs::read(folder.join("program.ptx"))?;
    let cubin = std::fs::read(folder.join("program.cubin"))?;
    let sass = run(Command::new(toolchain.tool("cuobjdump"))
        .arg("-sass")
        .arg(format!("{}/program.cubin", unit.folder()))
        .current_dir(&workspace.root))?;
    let measured = resources::measure(&cubin, unit.entry, &messages, &String::from_utf8_lossy(&sass.stdout))?;
    Ok(Compiled { ptx, cubin, measured })
}

/// Refuses a program whose assembler warns, or waits for wgmma in places of its own choice (messages C75xx, which it
/// prints as mere information): products are serialised then.
fn accept(unit: &Unit, messages: &str) -> Result<()> {
    let wrong: Vec<&str> =
        messages.lines().filter(|line| line.contains("(C75") || line.contains("ptxas warning")).collect();
    if !wrong.is_empty() {
        bail!("{}: ptxas says\n{}", unit.folder(), wrong.join("\n"));
    }
    Ok(())
}

fn run(command: &mut Command) -> Result<Output> {
    let tool = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot start {tool}"))?;
    if !output.status.success() {
        let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
        bail!(
            "{tool} {} failed ({}):\n{}{}",
            arguments.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(output)
}

/// The compiler read no file of ours that the closure does not have: otherwise a change could go unnoticed.
fn compare_dependencies(workspace: &Workspace, unit: &Unit, closure: &Closure, makefile: &str) -> Result<()> {
    let folder = unit.folder();
    let toolchain = workspace.toolchain();
    for path in makefile.split_whitespace().filter(|word| *word != "\\") {
        let path = Path::new(path);
        let path = path.strip_prefix(&workspace.root).unwrap_or(path);
        let path = path.strip_prefix(&folder).unwrap_or(path);
        let ours = path.is_relative() && path.extension().is_some_and(|extension| extension != "ptx");
        let path = sources::normalise(path);
        let known = closure.sources.contains_key(&*path.to_string_lossy());
        if ours && !known && !workspace.root.join(&path).starts_with(&toolchain) {
            bail!("the compiler read {} but the closure does not list it", path.display());
        }
    }
    Ok(())
}
