//! An HTTP endpoint that takes a sale once, however often it is sent.
//!
//! The page makes an `Idempotency-Key` when its form opens and sends it with each try, until it has an answer. The endpoint
//! runs the sale under that key with `store.once`, in the thread of the request: whoever sends it again gets the stored
//! answer. No answer means *unknown*, not *failed*, and the next try finds out, also after a crash of this program.
//!
//!     cargo run --example endpoint -- --listen 127.0.0.1:8017
//!     curl -i http://127.0.0.1:8017/sales -H 'Idempotency-Key: form-17' -d '{"card":"card-01","minor":4500}'
//!     cargo run --example endpoint -- --drive        drives itself, kills itself, and checks what came of it
//!
//! | the request | the answer |
//! | --- | --- |
//! | a new key | 201 and the receipt |
//! | the key again, the same content | 201 and the same receipt, to the byte |
//! | the key again, other content | 422 `KEY_REUSED` |
//! | the key again, while the first is at work | 409 `IN_PROGRESS`, with `Retry-After` |
//! | the key of a sale that was refused for good | 422 `DEAD` and the stored reason, each time |
//! | no key, a key or a body that cannot be one | 400 or 413 |

mod args;
mod drive;
mod reply;
mod sales;
mod server;

use std::io::{Read, stdin};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use birkez::Store;

use crate::args::{Args, USAGE};
use crate::sales::Sales;

fn main() -> ExitCode {
    let args = match Args::parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(wrong) => {
            eprintln!("endpoint: {wrong}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match if args.drive { drive::run() } else { serve(&args) } {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("endpoint: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Serves until the end of its input.
fn serve(args: &Args) -> anyhow::Result<()> {
    let sales = Sales::open(Store::open(&args.db)?, args.slow)?;
    let open = Arc::new(Mutex::new(Some(Arc::new(sales))));
    let address = server::listen(args.listen, &open)?;
    println!("listening on http://{address}");
    stdin().read_to_end(&mut Vec::new())?;
    // With the last of the sales goes the store, which signs this process off: nobody need find out that it is gone.
    server::close(&open);
    println!("stopped");
    Ok(())
}
