//! One GGUF file, mapped.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use memmap2::Mmap;

use super::{Gguf, GgufError, TensorInfo};

/// A GGUF file whose header is parsed and whose bytes are mapped read-only.
#[derive(Debug)]
pub struct GgufFile {
    path: PathBuf,
    gguf: Gguf,
    map: Mmap,
}

impl GgufFile {
    /// Opens, maps and checks a file.
    ///
    /// # Errors
    /// When it cannot be read or is not sound; the error names the file.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let map = map_file(path).map_err(|error| error.in_file(path))?;
        let gguf = Gguf::parse(&map).map_err(|error| error.in_file(path))?;
        Ok(Self { path: path.to_owned(), gguf, map })
    }

    /// Its header.
    pub fn gguf(&self) -> &Gguf {
        &self.gguf
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// The map itself.
    pub fn map(&self) -> &Mmap {
        &self.map
    }

    /// The data of one of its tensors, `n_bytes` long.
    ///
    /// # Panics
    /// May panic when `tensor` is of another file.
    pub fn tensor_bytes(&self, tensor: &TensorInfo) -> &[u8] {
        // Sums and range were checked when the header was parsed.
        let start = (self.gguf.data_start + tensor.offset) as usize;
        &self.map[start..start + tensor.n_bytes as usize]
    }

    /// Tells the operating system that the pages are not needed for now, say after the tensors were copied to a device.
    /// They are read again from the file when touched.
    pub fn advise_dont_need(&self) {
        release_pages(&self.map);
    }
}

impl AsRef<[u8]> for GgufFile {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

fn map_file(path: &Path) -> Result<Mmap, GgufError> {
    let io = |doing| move |error| GgufError::Io { doing, error };
    // Looked at before it is opened: opening a named pipe would wait for its other end.
    if !fs::metadata(path).map_err(io("open the file"))?.is_file() {
        return Err(GgufError::NotAFile);
    }
    let file = File::open(path).map_err(io("open the file"))?;
    map_read_only(&file).map_err(io("map the file"))
}

#[allow(unsafe_code)]
fn map_read_only(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the map is only read. Bytes may change under us when somebody writes to the file in place; everything
    // that is computed with (header fields) is copied out and checked once, tensor data has no invalid bit patterns
    // for the integer and float types it is read as. Truncating a mapped file ends the process with SIGBUS, which is
    // why models are replaced by rename, never in place.
    unsafe { Mmap::map(file) }
}

#[cfg(unix)]
#[allow(unsafe_code)]
fn release_pages(map: &Mmap) {
    // SAFETY: the map is file-backed and never written to, so dropped pages come back from the file with the same
    // content and references into it stay valid.
    let advised = unsafe { map.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
    if let Err(error) = advised {
        tracing::debug!(%error, "pages of a mapped file were not released");
    }
}

#[cfg(not(unix))]
fn release_pages(_map: &Mmap) {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::{GgmlType, GgufWriter, Metadata, TensorSpec};

    #[test]
    fn opens_what_was_written_and_survives_released_pages() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        let meta: Metadata = [("general.architecture", "test")].into_iter().collect();
        let spec = TensorSpec { name: "w".into(), shape: vec![3], ty: GgmlType::F32 };
        let mut writer = GgufWriter::new(File::create(&path).unwrap(), &meta, &[spec], 32).unwrap();
        writer.write_tensor(&[7; 12]).unwrap();
        assert_eq!(writer.finish().unwrap(), fs::metadata(&path).unwrap().len());

        let file = GgufFile::open(&path).unwrap();
        let tensor = file.gguf().tensor("w").unwrap();
        assert_eq!(file.tensor_bytes(tensor), [7; 12]);
        file.advise_dont_need();
        assert_eq!(file.tensor_bytes(tensor), [7; 12]);
        assert_eq!(file.gguf().metadata, meta);
    }

    #[test]
    fn errors_name_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page.gguf");
        fs::write(&path, "<!DOCTYPE html>").unwrap();
        let error = GgufFile::open(&path).unwrap_err();
        assert!(matches!(error.kind(), GgufError::NotGguf { .. }));
        assert_eq!(
            error.to_string(),
            format!("`{}`: starts with `<!DO`: this looks like an HTML page, not a GGUF file", path.display())
        );
        assert!(matches!(GgufFile::open(dir.path()).unwrap_err().kind(), GgufError::NotAFile));
        assert!(matches!(GgufFile::open(&dir.path().join("no")).unwrap_err().kind(), GgufError::Io { .. }));
        fs::write(&path, "").unwrap();
        assert!(GgufFile::open(&path).unwrap_err().to_string().contains("an empty file"));
    }
}
