//! What is answered: a receipt, or an error in the one shape that all errors have.

use birkez::Error;
use oxhttp::model::{Body, Response};
use serde_json::{Value, json};

use crate::sales::Receipt;

/// A request that comes to no receipt.
pub enum Refused {
    /// It never came to a job.
    Request { status: u16, code: &'static str, message: String },
    /// What the library says.
    Job(Error),
}

/// The table: from the library's codes to HTTP's.
fn status(error: &Error) -> u16 {
    match error {
        // The sale itself was refused. One that died otherwise, of spent attempts say, is no fault of the form's.
        Error::Dead { class, .. } if class == "permanent" => 422,
        _ => match error.code() {
            "KEY_REQUIRED" | "KEY_TOO_LONG" | "KEY_INVALID" => 400,
            "PAYLOAD_TOO_LARGE" => 413,
            "KEY_REUSED" => 422,
            "IN_PROGRESS" | "PARKED" | "CANCELLED" | "NOT_FOR_CALLERS" => 409,
            // Safe to send again, under the same key.
            _ if error.is_retryable() => 503,
            _ => 500,
        },
    }
}

impl Refused {
    fn status(&self) -> u16 {
        match self {
            Refused::Request { status, .. } => *status,
            Refused::Job(error) => status(error),
        }
    }

    fn is_retryable(&self) -> bool {
        match self {
            Refused::Request { status, .. } => *status == 503,
            Refused::Job(error) => error.is_retryable(),
        }
    }

    /// An error of the library is in the shape already.
    fn shape(&self) -> Value {
        match self {
            Refused::Request { code, message, .. } => {
                json!({ "code": code, "message": message, "kind": null, "key": null, "retryable": self.is_retryable() })
            }
            Refused::Job(error) => json!(error),
        }
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused::Job(error)
    }
}

/// A receipt is answered in the same way each time: whether it is the first answer is no business of the page's.
pub fn reply(taken: Result<Receipt, Refused>) -> Response<Body> {
    let (status, body, again) = match &taken {
        Ok(receipt) => (201, json!(receipt), false),
        Err(refused) => (refused.status(), refused.shape(), refused.is_retryable()),
    };
    let mut response = Response::builder().status(status).header("content-type", "application/json");
    if again {
        response = response.header("retry-after", "1");
    }
    response.body(Body::from(format!("{body}\n"))).expect("a status, two headers and a body are a response")
}
