//! `POST /v1/challenge`: a challenge for a client, or a pass for its solution.
//!
//! It takes what a check takes, of which it reads who the client is, and `token` and `solution`.

use http::Response;

use super::call::Call;
use super::fields::{FieldError, Object, is_null, text};
use super::{Failure, identified};
use crate::app::App;
use crate::body::Body;
use crate::challenge::Solution;
use crate::respond;

pub(super) async fn challenge(app: &App, body: &[u8]) -> Result<Response<Body>, Failure> {
    let (mut token, mut solution) = (None, None);
    let mut object = Object::parse(body)?;
    for (name, value) in &object.0 {
        match &**name {
            "token" if !is_null(value) => token = Some(text(name, value)?),
            "solution" if !is_null(value) => solution = Some(text(name, value)?),
            _ => {}
        }
    }
    object.0.retain(|(name, _)| !matches!(&**name, "token" | "solution"));
    let request = identified(app, Call::of(&object)?);
    let said = match (&token, &solution) {
        (Some(token), Some(solution)) => Solution { token, solution },
        (None, None) => {
            return Ok(match app.issue_challenge(&request)? {
                Ok(offer) => respond::json(format!("{{\"challenge\":{}}}", offer.json(None))),
                Err(refused) => refused.answer(),
            });
        }
        (None, Some(_)) => return Err(FieldError::new("token", "is missing").into()),
        (Some(_), None) => return Err(FieldError::new("solution", "is missing").into()),
    };
    Ok(match app.redeem_solution(&request, said).await? {
        // Who keeps the cookie, and over what, the caller knows best.
        Ok(granted) => respond::json(granted.json(true)),
        Err(refused) => refused.answer(),
    })
}
