//! Writes a file from front to back.

use std::io::Write;

use super::{GgufError, Metadata, TensorSpec, encode_header, error::shown, rules::align_up};

/// Streams a version 3 file: the header at once, then the tensors' data in the order announced.
///
/// Keeps no data, so a file may be larger than memory. [`GgufWriter::finish`] must be called: a writer that is merely
/// dropped may leave a file without its last tensors.
#[derive(Debug)]
pub struct GgufWriter<W: Write> {
    out: W,
    tensors: Vec<(String, u64)>,
    alignment: u64,
    /// The tensor being written.
    at: usize,
    /// Bytes of it that are written.
    filled: u64,
    /// Bytes of the file that are written.
    written: u64,
}

impl<W: Write> GgufWriter<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// Those of [`encode_header`], and when `out` fails.
    pub fn new(mut out: W, metadata: &Metadata, tensors: &[TensorSpec], alignment: u64) -> Result<Self, GgufError> {
        let header = encode_header(metadata, tensors, alignment)?;
        out.write_all(&header.bytes).map_err(write_error)?;
        let tensors = tensors.iter().map(|tensor| tensor.name.clone()).zip(header.sizes).collect();
        Ok(Self { out, tensors, alignment, at: 0, filled: 0, written: header.bytes.len() as u64 })
    }

    /// Writes all data of the next tensor.
    ///
    /// # Errors
    /// When `data` is not as long as the tensor, a tensor is half written, none is left, or the output fails.
    pub fn write_tensor(&mut self, data: &[u8]) -> Result<(), GgufError> {
        let (name, size) = self.current()?;
        let got = data.len() as u64;
        match self.filled.checked_add(got) {
            Some(total) if total == *size && self.filled == 0 => self.tensor_chunk(data),
            total => Err(GgufError::TensorSize {
                tensor: shown(name.as_bytes()),
                got: total.unwrap_or(u64::MAX),
                expected: *size,
            }),
        }
    }

    /// Writes some more data of the current tensor; the last piece of a tensor moves on to the next one.
    ///
    /// # Errors
    /// When `data` is more than the tensor has left, no tensor is left, or the output fails.
    pub fn tensor_chunk(&mut self, data: &[u8]) -> Result<(), GgufError> {
        let (name, size) = self.current()?;
        let (size, filled) = (*size, self.filled.saturating_add(data.len() as u64));
        if filled > size {
            return Err(GgufError::TensorSize { tensor: shown(name.as_bytes()), got: filled, expected: size });
        }
        self.put(data)?;
        self.filled = filled;
        if filled == size {
            self.pad(size)?;
            self.at += 1;
            self.filled = 0;
        }
        Ok(())
    }

    /// Flushes the output and returns the size of the file in bytes.
    ///
    /// # Errors
    /// When a tensor is missing or half written, or the output fails.
    pub fn finish(mut self) -> Result<u64, GgufError> {
        if let Some((next, _)) = self.tensors.get(self.at) {
            return Err(GgufError::Unfinished {
                written: self.at,
                count: self.tensors.len(),
                next: shown(next.as_bytes()),
            });
        }
        self.out.flush().map_err(write_error)?;
        Ok(self.written)
    }

    fn current(&self) -> Result<&(String, u64), GgufError> {
        self.tensors.get(self.at).ok_or(GgufError::NoMoreTensors { count: self.tensors.len() })
    }

    fn pad(&mut self, size: u64) -> Result<(), GgufError> {
        const ZEROS: [u8; 4096] = [0; 4096];
        // The header was encoded, so the padded size exists.
        let mut left = align_up(size, self.alignment).map_or(0, |padded| padded - size);
        while left > 0 {
            let zeros = &ZEROS[..left.min(ZEROS.len() as u64) as usize];
            self.put(zeros)?;
            left -= zeros.len() as u64;
        }
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), GgufError> {
        self.out.write_all(bytes).map_err(write_error)?;
        self.written += bytes.len() as u64;
        Ok(())
    }
}

fn write_error(error: std::io::Error) -> GgufError {
    GgufError::Io { doing: "write the file", error }
}
