//! Arguments that are a name and a value.

/// Reads `NAME=VALUE` or `NAME: VALUE`.
pub(crate) fn name_value_parser(
    separator: char,
) -> impl Fn(&str) -> Result<(String, String), String> + Clone + Send + Sync + 'static {
    move |text| {
        let (name, value) =
            text.split_once(separator).ok_or_else(|| format!("expected NAME{separator}VALUE"))?;
        Ok((name.trim().to_owned(), value.trim().to_owned()))
    }
}
