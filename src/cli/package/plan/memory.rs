//! Sizes on the command line.

/// Units and how many bytes they are. Single letters are left out: they mean one thing here and another there.
const UNITS: [(&str, u64); 9] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

/// Bytes of a size such as `24GiB` or `1.5TB`, rounded down; at least 1.
pub(super) fn parse(text: &str) -> Result<u64, String> {
    let expected = || format!("`{text}` is no size: expected a number and B, KiB, MiB, GiB, TiB, KB, MB, GB or TB");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text.get(digits.len()..).unwrap_or_default();
    let (_, factor) = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or_else(expected)?;
    let digits = digits.trim_end();
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !(part.is_empty() && !digits.ends_with('.') || is_number(part)) || part.len() > 6 {
        return Err(expected());
    }
    let too_large = || format!("`{text}` is more than 64 bits count");
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    let thousandths = |n: u64| n.checked_mul(*factor).map(|n| n / 10u64.pow(part.len() as u32));
    let rest = if part.is_empty() { Some(0) } else { part.parse().ok().and_then(thousandths) };
    let bytes = whole.checked_mul(*factor).zip(rest).and_then(|(whole, rest)| whole.checked_add(rest));
    match bytes {
        Some(0) => Err(format!("`{text}` is nothing: a stage needs some memory")),
        Some(bytes) => Ok(bytes),
        None => Err(too_large()),
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn sizes_have_a_unit() {
        let good = [
            ("24GiB", 24 << 30),
            ("24 gib", 24 << 30),
            ("1.5GiB", 3 << 29),
            ("48GB", 48_000_000_000),
            ("0.25TB", 250_000_000_000),
            ("1B", 1),
            ("16777215TiB", 16_777_215 << 40),
        ];
        for (text, bytes) in good {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "24",
            "24G",
            "GiB",
            "-1GiB",
            "1e3GiB",
            "1.GiB",
            ".5GiB",
            "1.5.5GiB",
            "nanGiB",
            "0GiB",
            "0.1B",
            "16777216TiB",
            "99999999999999999999B",
        ] {
            assert!(parse(text).is_err_and(|error| error.contains(text)), "{text}");
        }
    }
}
