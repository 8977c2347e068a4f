//! Addresses are no part of the identity.

use std::collections::BTreeSet;

use flotilla_client::{Client, Config};
use flotilla_proto::pdpb::GetMembersRequest;
use flotilla_proto::pdpb::pd_client::PdClient;

use crate::processes::{Processes, until};
use crate::{get, is_heard, load, put};

/// Waits until placement, asked at the store at `place`, has the addresses of now.
async fn placement_follows(cluster: &Processes, place: usize) {
    let wanted: BTreeSet<String> = cluster.endpoints().iter().cloned().collect();
    until(async || {
        let (stores, members) = placement(&cluster.endpoints()[place]).await;
        match stores == wanted && members == wanted {
            true => Ok(()),
            false => Err(format!("stores {stores:?}, members {members:?}, not {wanted:?}")),
        }
    })
    .await;
}

/// The addresses of the stores and of placement's members.
async fn placement(endpoint: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let client = Client::connect(&[endpoint], Config::default()).await.unwrap();
    let stores = client.stores().await.unwrap();
    let stores = stores.into_iter().map(|store| store.address).collect();
    let mut pd = PdClient::connect(format!("http://{endpoint}")).await.unwrap();
    let members = pd.get_members(GetMembersRequest::default()).await.unwrap().into_inner().members;
    let url = |url: &String| url.trim_start_matches("http://").to_owned();
    let members = members.iter().flat_map(|member| member.client_urls.iter().map(url)).collect();
    (stores, members)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_addresses_may_change_at_once() {
    let mut cluster = Processes::start(3, 2).await;
    put(&cluster, "key", "value").await;
    for place in 0..3 {
        cluster.stop(place);
        cluster.readdress(place);
    }
    // Two get a new list, the third learns of it by its own address alone.
    for place in 0..2 {
        cluster.configure(place, &cluster.settings(place));
    }
    let own = &cluster.endpoints()[2];
    let settings = format!(
        "data_dir = {:?}\naddr = \"{own}\"\nadvertise_addr = \"{own}\"\n",
        cluster.data_dir(2)
    );
    cluster.configure(2, &settings);
    cluster.start_all();
    cluster.ready().await;
    assert_eq!(get(&cluster, "key").await.unwrap(), "value");
    for place in 0..3 {
        is_heard(&cluster, place).await;
        placement_follows(&cluster, place).await;
    }

    // Later starts need no list to find the others where they are now.
    for place in 0..3 {
        cluster.stop(place);
        cluster.configure(place, &format!("data_dir = {:?}\n", cluster.data_dir(place)));
    }
    cluster.start_all();
    cluster.ready().await;
    assert_eq!(get(&cluster, "key").await.unwrap(), "value");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn addresses_may_change_one_by_one_while_the_others_run() {
    let mut cluster = Processes::start(3, 2).await;
    let old_list = cluster.settings(0).lines().last().unwrap().to_owned();
    for place in 0..3 {
        let client = load::client(cluster.endpoints()).await;
        cluster.stop(place);
        client.put(format!("key {place}"), "value").await.unwrap();
        cluster.readdress(place);
        let own = cluster.endpoints()[place].clone();
        let settings = format!(
            "name = \"s{place}\"\ndata_dir = {:?}\naddr = \"{own}\"\nadvertise_addr = \"{own}\"\n\
             {old_list}\n",
            cluster.data_dir(place)
        );
        cluster.configure(place, &settings);
        cluster.restart(place);
        is_heard(&cluster, place).await;
        cluster.ready().await;
        for asked in 0..3 {
            placement_follows(&cluster, asked).await;
        }
        client.put(format!("key {place} again"), "value").await.unwrap();
    }
    for place in 0..3 {
        assert_eq!(get(&cluster, &format!("key {place}")).await.unwrap(), "value");
    }
}
