//! The JSON Schema of the policy language, so that editors complete and check.
//!
//! The definition of a map has the name that the compiler's own tests give it (`limit`, `when`), and
//! `profile_` before it where nothing is required and null deletes. What needs the whole policy, such
//! as whether an operation is declared, is left to the compiler.

/// The schema of a policy, as JSON text.
#[must_use]
pub const fn json_schema() -> &'static str {
    include_str!("policy.schema.json")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::json_schema;
    use crate::identity::ForwardingHeader;
    use crate::policy::compile::known_keys;
    use crate::policy::model::Algorithm;
    use crate::response::Placeholder;

    fn schema() -> Value {
        serde_json::from_str(json_schema()).unwrap()
    }

    fn property_names(schema: &Value, definition: &str) -> BTreeSet<String> {
        let properties = &schema["$defs"][definition]["properties"];
        let properties = properties.as_object().unwrap_or_else(|| panic!("no `{definition}`"));
        properties.keys().cloned().collect()
    }

    #[test]
    fn every_map_has_the_keys_of_the_compiler_and_no_others() {
        let schema = schema();
        for (name, keys) in known_keys() {
            let known: BTreeSet<String> = keys.known().map(str::to_owned).collect();
            assert_eq!(property_names(&schema, name), known, "{name}");
            assert_eq!(schema["$defs"][name]["additionalProperties"], false, "{name}");
        }
    }

    #[test]
    fn profiles_have_the_same_keys_require_none_and_may_delete_each() {
        let schema = schema();
        for (name, keys) in known_keys() {
            let profile = format!("profile_{name}");
            let known = keys.known().filter(|key| *key != "profiles");
            let known: BTreeSet<String> = known.map(str::to_owned).collect();
            assert_eq!(property_names(&schema, &profile), known, "{profile}");
            let definition = &schema["$defs"][&profile];
            assert_eq!(definition["additionalProperties"], false, "{profile}");
            assert!(definition.get("required").is_none(), "{profile}");
            for (key, property) in definition["properties"].as_object().unwrap() {
                let forms = property["anyOf"].as_array().unwrap();
                assert!(forms.iter().any(|form| form["type"] == "null"), "{profile}: {key}");
            }
        }
    }

    #[test]
    fn every_property_and_definition_says_what_it_is() {
        let schema = schema();
        for (name, definition) in schema["$defs"].as_object().unwrap() {
            assert!(definition["description"].is_string(), "{name}");
            let properties = definition.get("properties").and_then(Value::as_object);
            for (key, property) in properties.into_iter().flatten() {
                assert!(property["description"].is_string(), "{name}: {key}");
            }
        }
    }

    #[test]
    fn the_words_of_the_compiler_are_the_words_of_the_schema() {
        let schema = schema();
        let headers = &schema["$defs"]["identity"]["properties"]["forwarded"]["anyOf"][0]["enum"];
        let expected: Vec<&str> =
            ForwardingHeader::ALL.iter().map(|header| header.header_name()).collect();
        assert_eq!(*headers, Value::from(expected));
        let parts = &schema["$defs"]["part"]["anyOf"][0]["enum"];
        assert_eq!(*parts, Value::from(crate::policy::compile::RESERVED_PARTS.to_vec()));
        let taken = &schema["$defs"]["attribute_name"]["allOf"][2]["not"]["enum"];
        let words = crate::policy::compile::RESERVED_PARTS.iter();
        let words = words.chain(&[crate::policy::compile::NETWORK]).copied();
        assert_eq!(*taken, Value::from(words.collect::<Vec<_>>()));
        let body = schema["$defs"]["body_value"].to_string();
        let words: Vec<&str> = Placeholder::ALL.iter().map(|(word, _)| *word).collect();
        assert!(body.contains(&format!("(?:{})", words.join("|"))), "{body}");
        let algorithms = schema["$defs"]["limit"]["oneOf"].as_array().unwrap();
        let algorithms: Vec<&str> =
            algorithms.iter().filter_map(|one| one["required"][0].as_str()).collect();
        assert_eq!(algorithms, Algorithm::ALL.map(Algorithm::name));
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let schema = schema();
        let mut references = Vec::new();
        collect_references(&schema, &mut references);
        for reference in references {
            let pointer = reference.trim_start_matches('#');
            assert!(schema.pointer(pointer).is_some(), "{reference}");
        }
    }

    fn collect_references<'s>(value: &'s Value, found: &mut Vec<&'s str>) {
        match value {
            Value::Object(entries) => {
                found.extend(entries.get("$ref").and_then(Value::as_str));
                entries.values().for_each(|value| collect_references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|item| collect_references(item, found)),
            _ => {}
        }
    }
}
