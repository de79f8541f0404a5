//! Reader and writer together.

use super::*;

fn spec(name: &str, shape: &[u64], ty: GgmlType) -> TensorSpec {
    TensorSpec { name: name.into(), shape: shape.into(), ty }
}

fn write(metadata: &Metadata, tensors: &[TensorSpec], alignment: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = GgufWriter::new(&mut bytes, metadata, tensors, alignment).unwrap();
    for tensor in tensors {
        let size = tensor.ty.tensor_bytes(&tensor.shape).unwrap();
        writer.write_tensor(&vec![0xa5; size as usize]).unwrap();
    }
    writer.finish().unwrap();
    bytes
}

#[test]
fn what_is_written_is_read() {
    let meta: Metadata = [("general.architecture", Value::from("glm")), ("n", 3u32.into())].into_iter().collect();
    let tensors = [spec("a", &[3, 2], GgmlType::F32), spec("b", &[64], GgmlType::Q4_0)];
    let gguf = Gguf::parse(&write(&meta, &tensors, 32)).unwrap();
    assert_eq!((gguf.version, gguf.alignment, &gguf.metadata), (3, 32, &meta));
    assert_eq!(gguf.tensor("b").map(|t| (t.offset, t.n_bytes)), Some((32, 36)));
}
