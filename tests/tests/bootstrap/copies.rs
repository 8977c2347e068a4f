//! Directories that are older copies, copies in use, and halves.

use std::fs;

use crate::processes::{Processes, copy_dir};
use crate::{OLDER, get, is_heard, put};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_copy_of_a_directory_is_refused_and_the_newest_serves() {
    let mut cluster = Processes::start(3, 2).await;
    cluster.stop(2);
    let old = cluster.aside("old");
    copy_dir(&cluster.data_dir(2), &old);
    cluster.restart(2);
    is_heard(&cluster, 2).await;
    cluster.kill(0);
    put(&cluster, "key", "in the newest").await;
    cluster.restart(0);
    is_heard(&cluster, 0).await;
    cluster.kill(2);

    let newest = cluster.move_away(2);
    copy_dir(&old, &cluster.data_dir(2));
    cluster.refused(2, &[OLDER, "bring the newest disk back"]).await;
    // Starts of the copy do not make it the newest.
    for _ in 0..3 {
        cluster.refused(2, &[OLDER]).await;
    }
    cluster.put_back(2, &newest);
    cluster.restart(2);
    is_heard(&cluster, 2).await;
    cluster.ready().await;
    assert_eq!(get(&cluster, "key").await.unwrap(), "in the newest");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_directory_is_started_once_and_a_copy_of_it_not_at_all() {
    let mut cluster = Processes::start(3, 2).await;
    cluster.stop(2);
    let copy = cluster.aside("copy");
    copy_dir(&cluster.data_dir(2), &copy);
    cluster.restart(2);
    is_heard(&cluster, 2).await;
    let (list, dir) = (cluster.list(), cluster.data_dir(2));
    let settings = |dir, own: &str| {
        format!(
            "name = \"s2\"\ndata_dir = {dir:?}\ninitial_cluster = \"{list}\"\naddr = \"{own}\"\n"
        )
    };
    let second = cluster.add(|own| settings(dir, own));
    cluster.refused(second, &["in use"]).await;
    let copied = cluster.add(|own| settings(copy, own));
    cluster.refused(copied, &[OLDER]).await;
    assert!(cluster.runs(2), "the copy has ended the store: {}", cluster.said(2));
    cluster.ready().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_of_a_directory_is_refused() {
    let mut cluster = Processes::start(3, 2).await;
    cluster.stop(2);
    let old = cluster.aside("old");
    copy_dir(&cluster.data_dir(2), &old);
    for _ in 0..2 {
        cluster.restart(2);
        is_heard(&cluster, 2).await;
        put(&cluster, "key", "value").await;
        cluster.kill(2);
    }
    let newest = cluster.aside("newest");
    copy_dir(&cluster.data_dir(2), &newest);
    let dir = cluster.data_dir(2);

    fs::remove_dir_all(dir.join("log")).unwrap();
    cluster.refused(2, &["has its pages, but not its log: bring the whole directory back"]).await;

    copy_dir(&newest, &dir);
    fs::remove_file(dir.join("pages")).unwrap();
    cluster.refused(2, &["has its log, but not its pages: bring the whole directory back"]).await;

    copy_dir(&newest, &dir);
    copy_dir(&old.join("log"), &dir.join("log"));
    cluster.refused(2, &["log and pages are not of the same day"]).await;

    copy_dir(&newest, &dir);
    fs::copy(old.join("pages"), dir.join("pages")).unwrap();
    cluster.refused(2, &["log and pages are not of the same day"]).await;

    copy_dir(&newest, &dir);
    cluster.restart(2);
    is_heard(&cluster, 2).await;
    cluster.ready().await;
    assert_eq!(get(&cluster, "key").await.unwrap(), "value");
}
