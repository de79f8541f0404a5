//! ggml's CPU part. It is linked in; in a build with the feature `portable` it is the one of several libraries that fits this
//! CPU best, and is loaded when the program runs.

use super::ffi;
use std::{
    ffi::{CStr, CString},
    path::{Path, PathBuf},
    sync::OnceLock,
};

/// The environment variable that names the folder of ggml's libraries.
pub const VARIABLE: &str = "SKIPPY_GGML_LIBRARIES";

/// There is no library that this machine can run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} has no CPU library of ggml that this machine can run; `{VARIABLE}` names another folder", dir.display())]
pub struct CpuError {
    /// Where it should be.
    pub dir: PathBuf,
}

/// Loads the library unless it is linked in. Once; later calls answer what the first one found: the name of its file, or `None`
/// where there is none to load.
///
/// # Errors
/// [`CpuError`].
pub fn load() -> Result<Option<&'static str>, CpuError> {
    static LOADED: OnceLock<Result<Option<String>, CpuError>> = OnceLock::new();
    match LOADED.get_or_init(find) {
        Ok(name) => Ok(name.as_deref()),
        Err(error) => Err(error.clone()),
    }
}

fn find() -> Result<Option<String>, CpuError> {
    if !cfg!(feature = "portable") {
        return Ok(None);
    }
    let program = std::env::current_exe().unwrap_or_default();
    let dir = folder(std::env::var_os(VARIABLE).map(PathBuf::from), &program);
    let Ok(path) = CString::new(dir.as_os_str().as_encoded_bytes()) else { return Err(CpuError { dir }) };
    // SAFETY: a terminated string; one thread comes here, once, and nobody calls ggml's CPU part before this returns.
    if !unsafe { ffi::skippy_cpu_load(path.as_ptr()) } {
        return Err(CpuError { dir });
    }
    // SAFETY: null or a terminated string that stays.
    let file = unsafe { ffi::skippy_cpu_library().as_ref().map(|file| CStr::from_ptr(file)) };
    let name = file.and_then(|file| Path::new(file.to_str().ok()?).file_name()?.to_str().map(str::to_owned));
    Ok(Some(name.unwrap_or_else(|| "unnamed".to_owned())))
}

/// Where the libraries lie: the folder asked for, or the one that `make release` puts beside that of the program.
fn folder(asked: Option<PathBuf>, program: &Path) -> PathBuf {
    let beside = || program.parent().and_then(Path::parent).unwrap_or(Path::new("/")).join("lib");
    asked.filter(|asked| !asked.as_os_str().is_empty()).unwrap_or_else(beside)
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
        assert_eq!(load().unwrap().is_some(), cfg!(feature = "portable"));
        // SAFETY: a type of the linked ggml; the entry is static.
        let traits = unsafe { ffi::skippy_cpu_type_traits(llama_cpp_sys_2::GGML_TYPE_Q8_0).as_ref() }.unwrap();
        assert!(traits.vec_dot.is_some() && traits.from_float.is_some());
        assert_eq!(traits.vec_dot_type, llama_cpp_sys_2::GGML_TYPE_Q8_0);
    }

    #[test]
    fn a_refusal_names_the_folder() {
        let refused = CpuError { dir: "/opt/skippy/lib".into() }.to_string();
        assert!(
            refused.starts_with("/opt/skippy/lib has no CPU library of ggml that this machine can run"),
            "{refused}"
        );
    }
}
