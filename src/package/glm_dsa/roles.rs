//! IndexShare roles: which layers select rows by an indexer of their own.

use super::{Arch, ContractError, keys::Keys};
use crate::{
    gguf::{Array, Value},
    policy::Role,
};

/// The key that states the roles.
pub(super) const TYPES: &str = "attention.indexer.types";

/// Context length from which the GLM-5.2 pattern applies when a file does not list its roles.
const GLM_5_2_CONTEXT: u32 = 1 << 20;

/// The roles of all layers: those of the trunk as [`TYPES`] states them for each, or by default, then full for the MTP
/// block, which follows no layer whose list it could use.
pub(super) fn read(
    keys: &Keys<'_>,
    arch: Arch,
    trunk: u32,
    nextn: u32,
    context_length: u32,
) -> Result<Vec<Role>, ContractError> {
    let mut roles = match keys.get(TYPES) {
        Some(value) => stated(keys, value, trunk)?,
        None => (0..trunk).map(|layer| by_default(arch, context_length, layer)).collect(),
    };
    if let (Some(value), Some(Role::Shared)) = (keys.get(TYPES), roles.first()) {
        return Err(keys.wrong(TYPES, value, "true for layer 0, which has no layer before it to share a list with"));
    }
    if let (Arch::DeepSeek32, Some(value), Some(shared)) =
        (arch, keys.get(TYPES), roles.iter().position(|role| *role == Role::Shared))
    {
        let expected = format!("true for layer {shared}: every layer of this architecture has its own indexer");
        return Err(keys.wrong(TYPES, value, expected));
    }
    roles.extend((0..nextn).map(|_| Role::Full));
    Ok(roles)
}

fn stated(keys: &Keys<'_>, value: &Value, trunk: u32) -> Result<Vec<Role>, ContractError> {
    let role = |full| if full { Role::Full } else { Role::Shared };
    let number = |n: i64| match n {
        0 => Ok(Role::Shared),
        1 => Ok(Role::Full),
        n => Err(keys.wrong(TYPES, value, format!("0 or 1 for each layer, not {n}"))),
    };
    let expected = || format!("an array of bool with one entry for each of the {trunk} trunk layers");
    // Length first: a foreign array may be long.
    match value.as_array().filter(|array| array.len() as u64 == u64::from(trunk)) {
        Some(Array::Bool(types)) => Ok(types.iter().map(|full| role(*full)).collect()),
        Some(Array::U32(types)) => types.iter().map(|n| number(i64::from(*n))).collect(),
        Some(Array::I32(types)) => types.iter().map(|n| number(i64::from(*n))).collect(),
        _ => Err(keys.wrong(TYPES, value, expected())),
    }
}

/// GLM-5 and 5.1 have an indexer on every layer; GLM-5.2, known by its context of 2^20, on layers 0, 1, 2 and then every
/// fourth.
fn by_default(arch: Arch, context_length: u32, layer: u32) -> Role {
    let full = arch == Arch::DeepSeek32
        || context_length < GLM_5_2_CONTEXT
        || layer < 3
        || layer.saturating_sub(2).is_multiple_of(4);
    if full { Role::Full } else { Role::Shared }
}
