//! Directories that were emptied.

use crate::processes::Processes;
use crate::{LOST, can_put, get, is_heard, put};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_store_never_votes_and_nothing_acknowledged_is_lost() {
    let mut cluster = Processes::start(3, 2).await;
    cluster.stop(0);
    put(&cluster, "key", "acknowledged by two").await;
    cluster.kill(1);
    cluster.kill(2);
    let kept = cluster.move_away(2);

    // No member of the cluster answers it: it waits, names the missing stores, and does not serve.
    cluster.restart(2);
    let [first, second] = [0, 1].map(|place| cluster.endpoints()[place].clone());
    let (first, second) = (format!("s0={first}"), format!("s1={second}"));
    cluster.says(2, &["no cluster yet", &first, &second, "does not answer"]).await;
    assert!(!can_put(&cluster.endpoints()[2..], "key").await);
    assert!(cluster.runs(2));

    // The store that never had the write comes back. Had the emptied one voted for it, the two
    // would serve without the write.
    cluster.restart(0);
    cluster.ends_refused(2, &[LOST, "store s2 is a store of cluster", "as s0="]).await;
    assert!(!can_put(&cluster.endpoints()[..1], "key").await, "one of three has put");
    cluster.refused(2, &[LOST]).await;

    cluster.put_back(2, &kept);
    cluster.restart(2);
    assert_eq!(get(&cluster, "key").await.unwrap(), "acknowledged by two");
    cluster.restart(1);
    cluster.ready().await;

    // The same while all others run.
    cluster.kill(2);
    let kept = cluster.move_away(2);
    cluster.refused(2, &[LOST]).await;
    cluster.put_back(2, &kept);
    cluster.restart(2);
    cluster.ready().await;
    assert_eq!(get(&cluster, "key").await.unwrap(), "acknowledged by two");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_of_the_list_founds_no_second_cluster() {
    let mut cluster = Processes::start(3, 2).await;
    put(&cluster, "key", "value").await;
    cluster.kill(0);
    let kept = cluster.move_away(0);
    cluster.refused(0, &[LOST, "store s0 is a store of cluster"]).await;
    cluster.put_back(0, &kept);
    cluster.restart(0);
    cluster.ready().await;
    assert_eq!(get(&cluster, "key").await.unwrap(), "value");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_of_one_is_no_way_around_that() {
    let mut cluster = Processes::start(3, 2).await;
    put(&cluster, "key", "value").await;
    cluster.kill(2);
    let kept = cluster.move_away(2);
    let own = cluster.endpoints()[2].clone();
    let alone = format!(
        "name = \"s2\"\ndata_dir = {:?}\ninitial_cluster = \"s2={own}\"\n",
        cluster.data_dir(2)
    );
    cluster.configure(2, &alone);
    cluster.refused(2, &["this address is that of store", "lost its data", "--new"]).await;

    // Said to be meant, it begins; and the stores of the other cluster do not take it.
    cluster.restart_new(2);
    cluster.says(2, &["the node serves"]).await;
    cluster.says(0, &["this is store s2 of cluster", "two clusters use one address"]).await;
    assert!(cluster.runs(2));
    cluster.kill(2);

    cluster.put_back(2, &kept);
    cluster.configure(2, &cluster.settings(2));
    cluster.restart(2);
    is_heard(&cluster, 2).await;
    cluster.ready().await;
    assert_eq!(get(&cluster, "key").await.unwrap(), "value");
}
