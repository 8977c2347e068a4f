//! Fixed-width fields and strings on top of the region crate's varints.

use bytes::Bytes;
use flotilla_base::fields::{FieldReader, Malformed, put_bytes};

/// Takes eight bytes, the lowest first.
pub(crate) fn fixed_u64(reader: &mut FieldReader) -> Result<u64, Malformed> {
    let mut bytes = [0; 8];
    for byte in &mut bytes {
        *byte = reader.byte()?;
    }
    Ok(u64::from_le_bytes(bytes))
}

/// Takes sixteen bytes, the lowest first.
pub(crate) fn fixed_u128(reader: &mut FieldReader) -> Result<u128, Malformed> {
    let low = fixed_u64(reader)?;
    let high = fixed_u64(reader)?;
    Ok(u128::from(high) << 64 | u128::from(low))
}

/// Writes a length and the bytes of a text.
pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    put_bytes(out, text.as_bytes());
}

/// Takes what [`put_text`] wrote.
pub(crate) fn text(reader: &mut FieldReader) -> Result<String, Malformed> {
    let bytes = reader.bytes()?;
    String::from_utf8(bytes.to_vec()).map_err(|_| reader.malformed())
}

/// A reader of a whole row whose first byte must be `format`.
pub(crate) fn row(row: &[u8], format: u8, what: &'static str) -> Result<FieldReader, Malformed> {
    let mut reader = FieldReader::new(Bytes::copy_from_slice(row), what);
    if reader.byte()? != format {
        return Err(reader.malformed());
    }
    Ok(reader)
}
