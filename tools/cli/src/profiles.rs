//! Cost profiles by name, or from a file.

use std::borrow::Cow;

use outboard_nic::profile::Profile;

use crate::error::CliError;

/// The built-in profile called `name`, or else the profile in the file `name`.
pub(crate) fn named(name: &str) -> Result<Cow<'static, Profile>, CliError> {
    if let Some(profile) = Profile::named(name) {
        return Ok(Cow::Borrowed(profile));
    }
    let text = std::fs::read_to_string(name).map_err(|error| {
        let known: Vec<&str> = Profile::built_in().collect();
        CliError::Failed(format!("profile {name}: {error}; name a file, or one of {}", known.join(", ")))
    })?;
    Profile::read(name, &text).map(Cow::Owned).map_err(CliError::failed)
}
