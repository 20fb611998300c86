//! The whole store as text: for people, for moving between schemas, and for the golden file.
//!
//! The form is canonical: records in the order of their keys, one a line.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{Store, StoreError, migrate};

impl Store {
    /// Every record as JSON: `{"schema": …, "records": {key: value, …}}`, one record a line. A value
    /// that is no JSON is shown as null.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    pub fn export(&self) -> Result<String, StoreError> {
        let records = self.engine.run("export its records", |records| records.iter().collect::<Result<Vec<_>, _>>())?;
        let mut text = format!("{{\"schema\":{},\"records\":{{", migrate::SCHEMA);
        for (index, (key, value)) in records.iter().enumerate() {
            let (key, value) =
                (json!(String::from_utf8_lossy(key)), serde_json::from_slice(value).unwrap_or(Value::Null));
            // Writing to a text cannot fail.
            let _ = write!(text, "{}\n{key}:{value}", if index == 0 { "" } else { "," });
        }
        text.push_str("\n}}\n");
        Ok(text)
    }
}
