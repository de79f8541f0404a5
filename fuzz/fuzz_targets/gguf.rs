//! Any bytes: the reader answers with an error or with a header that keeps its promises.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skippy_stage::gguf::{Gguf, TensorSpec, encode_header};

fuzz_target!(|bytes: &[u8]| {
    let gguf = match Gguf::parse(bytes) {
        Ok(gguf) => gguf,
        Err(error) => {
            // Messages quote foreign text: they stay short and printable, whatever it was.
            let message = error.to_string();
            assert!(message.len() < 2000 && !message.contains(|c: char| c.is_control()), "{message:?}");
            return;
        }
    };
    for tensor in &gguf.tensors {
        let end = gguf.data_start.checked_add(tensor.offset).and_then(|at| at.checked_add(tensor.n_bytes));
        assert!(end.is_some_and(|end| end <= bytes.len() as u64), "{tensor:?} is outside");
        assert_eq!(tensor.ty.tensor_bytes(&tensor.shape), Some(tensor.n_bytes));
    }

    let specs: Vec<_> = gguf
        .tensors
        .iter()
        .map(|tensor| TensorSpec { name: tensor.name.clone(), shape: tensor.shape.clone(), ty: tensor.ty })
        .collect();
    let header = encode_header(&gguf.metadata, &specs, gguf.alignment).expect("what was read can be written");
    let again = Gguf::parse_with_len(&header.bytes, u64::MAX).expect("what was written can be read");
    assert_eq!(again.tensors, gguf.tensors);
    // Bytes rather than values: a NaN equals nothing.
    assert_eq!(encode_header(&again.metadata, &specs, again.alignment).expect("and once more"), header);
});
