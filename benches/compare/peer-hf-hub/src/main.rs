//! Pulls a repository into a folder with the `hf-hub` crate as its documentation shows it, its own
//! defaults untouched: the fastest unverified client that the comparison knows.

use hf_hub::{HFClient, split_id};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(repo), Some(folder)) = (arguments.next(), arguments.next()) else {
        return Err("usage: peer-hf-hub REPO FOLDER".into());
    };
    let (owner, name) = split_id(&repo);
    let client = HFClient::new()?;
    client.model(owner, name).snapshot_download().local_dir(folder).send().await?;
    Ok(())
}
