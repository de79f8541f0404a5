//! ggml's CPU part. It is linked in; in a build with the feature `portable` it is the one of several libraries that fits this
//! CPU best, and is loaded when the program runs.

use super::ffi;
use std::{
    ffi::{CStr, CString},
    fs, io,
    path::{Path, PathBuf},
    sync::OnceLock,
};

/// The environment variable that names the folder of ggml's libraries.
pub const VARIABLE: &str = "SKIPPY_GGML_LIBRARIES";

/// Why there is no library to compute with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CpuError {
    /// The folder cannot be read.
    #[error("cannot read {}, where ggml's libraries should be ({error}); `{VARIABLE}` names another folder", dir.display())]
    Folder {
        /// Where they should be.
        dir: PathBuf,
        /// What the system says.
        error: io::ErrorKind,
    },
    /// There are none in it.
    #[error("no CPU library of ggml (libggml-cpu-*.so) in {}; `{VARIABLE}` names another folder", dir.display())]
    Missing {
        /// Where they should be.
        dir: PathBuf,
    },
    /// There are, but none for this machine.
    #[error("this machine can run none of the {found} CPU libraries of ggml in {}", dir.display())]
    Unfit {
        /// Where they are.
        dir: PathBuf,
        /// How many.
        found: usize,
    },
}

/// Loads the library unless it is linked in. Once; later calls answer what the first one found: the name of its file, or that it
/// is built in.
///
/// # Errors
/// [`CpuError`].
pub fn load() -> Result<&'static str, CpuError> {
    static LOADED: OnceLock<Result<String, CpuError>> = OnceLock::new();
    let find = || {
        if !cfg!(feature = "portable") {
            return Ok("built in".to_owned());
        }
        // A link to the program is followed, so that the folder is where the program really is.
        let program = std::env::current_exe().and_then(fs::canonicalize).unwrap_or_default();
        load_from(folder(std::env::var_os(VARIABLE).map(PathBuf::from), &program))
    };
    LOADED.get_or_init(find).as_deref().map_err(Clone::clone)
}

fn load_from(dir: PathBuf) -> Result<String, CpuError> {
    let found = count(&dir)?;
    let Ok(path) = CString::new(dir.as_os_str().as_encoded_bytes()) else { return Err(CpuError::Missing { dir }) };
    // SAFETY: a terminated string; `load` comes here once, and nobody calls ggml's CPU part before that returns.
    if !unsafe { ffi::skippy_cpu_load(path.as_ptr()) } {
        return Err(CpuError::Unfit { dir, found });
    }
    // SAFETY: null or a terminated string that stays.
    let file = unsafe { ffi::skippy_cpu_library().as_ref().map(|file| CStr::from_ptr(file)) };
    let name = file.and_then(|file| Path::new(file.to_str().ok()?).file_name()?.to_str().map(str::to_owned));
    Ok(name.unwrap_or_else(|| "unnamed".to_owned()))
}

/// Where the libraries lie: the folder asked for, or the one that `make release` puts beside that of the program.
fn folder(asked: Option<PathBuf>, program: &Path) -> PathBuf {
    let beside = || program.parent().and_then(Path::parent).unwrap_or(Path::new("/")).join("lib");
    asked.filter(|asked| !asked.as_os_str().is_empty()).unwrap_or_else(beside)
}

/// How many CPU libraries `dir` has. ggml itself says nothing of those that it passes over.
fn count(dir: &Path) -> Result<usize, CpuError> {
    let entries = fs::read_dir(dir).map_err(|e| CpuError::Folder { dir: dir.to_owned(), error: e.kind() })?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    match names.filter(|name| name.starts_with("libggml-cpu") && name.ends_with(".so")).count() {
        0 => Err(CpuError::Missing { dir: dir.to_owned() }),
        found => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_lie_beside_the_program_unless_named() {
        for (asked, program, wanted) in [
            (None, "/opt/skippy/bin/skippy-stage", "/opt/skippy/lib"),
            (Some(""), "/opt/skippy/bin/skippy-stage", "/opt/skippy/lib"),
            (Some("/usr/lib/ggml"), "/opt/skippy/bin/skippy-stage", "/usr/lib/ggml"),
            (None, "", "/lib"),
        ] {
            assert_eq!(folder(asked.map(PathBuf::from), Path::new(program)), Path::new(wanted), "{asked:?} {program}");
        }
    }

    #[test]
    fn the_cpu_part_is_there_and_knows_its_types() {
        assert_eq!(load().unwrap() != "built in", cfg!(feature = "portable"));
        // SAFETY: a type of the linked ggml; the entry is static.
        let traits = unsafe { ffi::skippy_cpu_type_traits(llama_cpp_sys_2::GGML_TYPE_Q8_0).as_ref() }.unwrap();
        assert!(traits.vec_dot.is_some() && traits.from_float.is_some());
        assert_eq!(traits.vec_dot_type, llama_cpp_sys_2::GGML_TYPE_Q8_0);
    }

    #[test]
    fn a_folder_without_libraries_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let (path, gone) = (dir.path(), dir.path().join("lib"));
        for name in ["libggml-base.so", "libggml-cpu-haswell.so.0", "ggml-cpu-haswell.so"] {
            fs::write(path.join(name), "").unwrap();
        }
        let text = |dir: &Path| load_from(dir.to_owned()).unwrap_err().to_string();
        let wanted = format!("no CPU library of ggml (libggml-cpu-*.so) in {}; ", path.display());
        assert!(text(path).starts_with(&wanted), "{}", text(path));
        let wanted = format!("cannot read {}, where ggml's libraries should be (entity not found); ", gone.display());
        assert!(text(&gone).starts_with(&wanted), "{}", text(&gone));
    }
}
