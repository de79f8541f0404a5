//! Good and bad models.

use super::{testing::*, *};

mod config;
mod layers;
mod properties;
