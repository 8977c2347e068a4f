//! A cluster that is changed over to TLS.

use crate::site::Site;

/// A read by a client that has no certificate.
const PLAIN_GET: &str =
    "unset FLOTILLA_CA_FILE FLOTILLA_CERT_FILE FLOTILLA_KEY_FILE; flotilla ctl get ship";

pub(super) fn a_client_without_a_certificate_is_served(site: &mut Site) {
    assert_eq!(site.run("s1", PLAIN_GET), "Vasa\n");
}

pub(super) fn a_client_without_a_certificate_is_refused(site: &mut Site) {
    assert_eq!(site.said, "Vasa\n".repeat(3), "with certificates, behind each restart");
    site.run("s1", &format!("{PLAIN_GET} 2> errors && exit 1; cat errors; grep -q -i tls errors"));
    let bundle = "flotilla debug bundle -o bundle.tar.gz; tar -tzf bundle.tar.gz";
    let parts = site.run("s1", bundle);
    assert!(parts.contains("stores/s3/metrics.txt"), "evidence is collected with TLS too: {parts}");
}

pub(super) fn the_certificate_is_read_again(site: &mut Site) {
    site.until("s1", "grep -q 'the certificate was read again' \"$MACHINE/run/journal\"");
    assert_eq!(site.run("s2", "flotilla ctl --timeout 60s get ship"), "Vasa\n");
}
