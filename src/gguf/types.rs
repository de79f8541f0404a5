//! The tensor types of ggml and how many bytes their blocks take.

/// A tensor type of ggml 0.26.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(non_camel_case_types, missing_docs)]
#[non_exhaustive]
pub enum GgmlType {
    F32,
    F16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q8_1,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    Q8_K,
    IQ2_XXS,
    IQ2_XS,
    IQ3_XXS,
    IQ1_S,
    IQ4_NL,
    IQ3_S,
    IQ2_S,
    IQ4_XS,
    I8,
    I16,
    I32,
    I64,
    F64,
    IQ1_M,
    BF16,
    TQ1_0,
    TQ2_0,
    MXFP4,
    NVFP4,
    Q1_0,
    Q2_0,
}

/// Type, id in the file, name, elements of a block, bytes of a block. Ids 4, 5, 31 to 33 and 36 to 38 were removed.
const TABLE: &[(GgmlType, u32, &str, u64, u64)] = {
    use GgmlType::*;
    &[
        (F32, 0, "f32", 1, 4),
        (F16, 1, "f16", 1, 2),
        (Q4_0, 2, "q4_0", 32, 18),
        (Q4_1, 3, "q4_1", 32, 20),
        (Q5_0, 6, "q5_0", 32, 22),
        (Q5_1, 7, "q5_1", 32, 24),
        (Q8_0, 8, "q8_0", 32, 34),
        (Q8_1, 9, "q8_1", 32, 36),
        (Q2_K, 10, "q2_K", 256, 84),
        (Q3_K, 11, "q3_K", 256, 110),
        (Q4_K, 12, "q4_K", 256, 144),
        (Q5_K, 13, "q5_K", 256, 176),
        (Q6_K, 14, "q6_K", 256, 210),
        (Q8_K, 15, "q8_K", 256, 292),
        (IQ2_XXS, 16, "iq2_xxs", 256, 66),
        (IQ2_XS, 17, "iq2_xs", 256, 74),
        (IQ3_XXS, 18, "iq3_xxs", 256, 98),
        (IQ1_S, 19, "iq1_s", 256, 50),
        (IQ4_NL, 20, "iq4_nl", 32, 18),
        (IQ3_S, 21, "iq3_s", 256, 110),
        (IQ2_S, 22, "iq2_s", 256, 82),
        (IQ4_XS, 23, "iq4_xs", 256, 136),
        (I8, 24, "i8", 1, 1),
        (I16, 25, "i16", 1, 2),
        (I32, 26, "i32", 1, 4),
        (I64, 27, "i64", 1, 8),
        (F64, 28, "f64", 1, 8),
        (IQ1_M, 29, "iq1_m", 256, 56),
        (BF16, 30, "bf16", 1, 2),
        (TQ1_0, 34, "tq1_0", 256, 54),
        (TQ2_0, 35, "tq2_0", 256, 66),
        (MXFP4, 39, "mxfp4", 32, 17),
        (NVFP4, 40, "nvfp4", 64, 36),
        (Q1_0, 41, "q1_0", 128, 18),
        (Q2_0, 42, "q2_0", 64, 18),
    ]
};

impl GgmlType {
    /// Every type, in the order of the ids.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.0)
    }

    /// The type with this id in a GGUF file; `None` for unknown and removed ones.
    pub fn from_id(id: u32) -> Option<Self> {
        TABLE.iter().find(|row| row.1 == id).map(|row| row.0)
    }

    /// The id in a GGUF file.
    pub fn id(self) -> u32 {
        self.row().1
    }

    /// ggml's name for it, like `q4_K`.
    pub fn name(self) -> &'static str {
        self.row().2
    }

    /// Elements of one block; rows are whole blocks.
    pub fn block_len(self) -> u64 {
        self.row().3
    }

    /// Bytes of one block.
    pub fn block_bytes(self) -> u64 {
        self.row().4
    }

    /// Bytes of a tensor of this shape (`ne0` first); `None` when a row is not whole blocks, the shape is empty, or
    /// elements or bytes exceed `i64`, in which ggml counts.
    pub fn tensor_bytes(self, shape: &[u64]) -> Option<u64> {
        const MOST: u64 = i64::MAX as u64;
        let ne0 = *shape.first()?;
        if ne0 % self.block_len() != 0 {
            return None;
        }
        let elements = shape.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim).filter(|&n| n <= MOST))?;
        (elements / self.block_len()).checked_mul(self.block_bytes()).filter(|&n| n <= MOST)
    }

    // The table lists the variants in declaration order; a test holds the two together.
    fn row(self) -> &'static (Self, u32, &'static str, u64, u64) {
        &TABLE[self as usize]
    }
}

impl std::fmt::Display for GgmlType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_rows_are_in_declaration_order_and_ids_round_trip() {
        for (i, row) in TABLE.iter().enumerate() {
            assert_eq!(row.0 as usize, i);
            assert_eq!(GgmlType::from_id(row.0.id()), Some(row.0));
        }
        assert!(TABLE.windows(2).all(|pair| pair[0].1 < pair[1].1));
        for removed in [4, 5, 31, 32, 33, 36, 37, 38, 43, u32::MAX] {
            assert_eq!(GgmlType::from_id(removed), None, "{removed}");
        }
    }

    #[test]
    fn tensor_bytes_counts_whole_blocks() {
        assert_eq!(GgmlType::F32.tensor_bytes(&[3, 5]), Some(60));
        assert_eq!(GgmlType::Q4_K.tensor_bytes(&[512, 3]), Some(2 * 3 * 144));
        assert_eq!(GgmlType::Q4_K.tensor_bytes(&[128, 4]), None, "half a block per row");
        assert_eq!(GgmlType::F32.tensor_bytes(&[]), None);
        assert_eq!(GgmlType::F32.tensor_bytes(&[1 << 32, 1 << 32]), None, "elements overflow");
        assert_eq!(GgmlType::F64.tensor_bytes(&[1 << 60]), None, "bytes overflow");
        assert_eq!(GgmlType::I8.tensor_bytes(&[1 << 62]), Some(1 << 62));
    }
}
