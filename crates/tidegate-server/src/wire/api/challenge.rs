//! `POST /v1/challenge`: a challenge for a client, or a pass for its solution.
//!
//! The body is that of a check, which says who the client is, with `token` and `solution`.

use super::check::to_request;
use super::check_body::CheckBody;
use crate::app::App;
use crate::challenge::Solution;
use crate::respond;
use crate::wire::endpoint::Answer;
use crate::wire::fields::{FieldError, Object, text};

pub(in crate::wire) async fn challenge(app: &App, body: &[u8]) -> Answer {
    let mut fields = Object::parse(body)?;
    let (token, solution) = (fields.take("token", text)?, fields.take("solution", text)?);
    let request = to_request(app, CheckBody::from_fields(&fields)?);
    let context = app.context(&request)?;
    let solution = match (&token, &solution) {
        (Some(token), Some(solution)) => Solution { token, solution },
        (None, None) => {
            return Ok(match app.issue_challenge(&context) {
                Ok(offer) => respond::json(format!("{{\"challenge\":{}}}", offer.json(None))),
                Err(refused) => refused.answer(),
            });
        }
        (None, Some(_)) => return Err(FieldError::new("token", "is missing").into()),
        (Some(_), None) => return Err(FieldError::new("solution", "is missing").into()),
    };
    Ok(match app.redeem_solution(&context, solution).await {
        // Secure by default: the caller knows best which connection its client uses.
        Ok(granted) => respond::json(granted.json(true)),
        Err(refused) => refused.answer(),
    })
}
