//! The redo area: a ring of sectors in the page file, and what can be read from it.
//!
//! Positions only grow; a byte's place in the ring is its position modulo the ring's length. Frames
//! stand one behind the other from the position that the durable meta page names. The first one
//! that is not whole ends them: it was being written when the power went, because a frame is
//! appended only after the one before is synced. For the same reason a whole beginning of a frame
//! behind one that is not whole tells that this was whole once, and is damaged.

use std::io::IoSlice;

use flotilla_vfs::File;

use super::frame::{RedoFrameHeader, SECTOR_BYTES};
use crate::error::{Error, Result};
use crate::page::{Span, UNIT_BYTES};

/// The part of a ring that one frame takes at most.
const FRAME_PART: u64 = 4;

/// The span of the redo area, and the position of the first frame that the durable root does not
/// contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RedoArea {
    /// Where it lies.
    pub(crate) span: Span,
    /// The position of the first frame that counts.
    pub(crate) from: u64,
}

impl RedoArea {
    /// Length of the ring.
    pub(crate) fn bytes(&self) -> u64 {
        self.span.bytes()
    }

    /// The longest frame.
    pub(crate) fn frame_bytes_max(&self) -> u64 {
        self.bytes() / FRAME_PART / SECTOR_BYTES as u64 * SECTOR_BYTES as u64
    }

    /// Writes a frame and makes it durable.
    pub(crate) fn append(&self, file: &dyn File, position: u64, frame: &[u8]) -> Result<()> {
        assert!(frame.len() as u64 <= self.bytes(), "a frame of {} bytes", frame.len());
        let (at, left) = self.file_offset(position);
        assert!(at.is_multiple_of(SECTOR_BYTES as u64), "a frame begins inside of a sector");
        let (first, second) = frame.split_at(frame.len().min(left));
        // The wrapped rest first: the header is in the other part, so a torn frame has no
        // beginning.
        if !second.is_empty() {
            let start = self.file_offset(position + left as u64).0;
            file.write_synced(&[IoSlice::new(second)], start)?;
        }
        file.write_synced(&[IoSlice::new(first)], at)?;
        Ok(())
    }

    /// Fills the ring with zeros, so that later writes change nothing but bytes. Not synced. Calls
    /// `wiped` with the bytes of each write.
    pub(crate) fn wipe(
        &self,
        file: &dyn File,
        mut wiped: impl FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        let mut at = 0;
        while at < self.bytes() {
            let len = (self.bytes() - at).min(ZEROS.len() as u64);
            file.write_at(&ZEROS[..len as usize], self.file_offset(at).0)?;
            at += len;
            wiped(len)?;
        }
        Ok(())
    }

    /// The unit that a position lies in, to be named in an error.
    pub(crate) fn unit(&self, position: u64) -> u64 {
        self.file_offset(position).0 / UNIT_BYTES as u64
    }

    /// Where a position lies in the file, and how many bytes there are to the ring's end.
    fn file_offset(&self, position: u64) -> (u64, usize) {
        let at = position % self.bytes();
        (self.span.start * UNIT_BYTES as u64 + at, (self.bytes() - at) as usize)
    }

    fn read(&self, file: &dyn File, position: u64, bytes: &mut [u8]) -> Result<()> {
        let (at, left) = self.file_offset(position);
        let middle = bytes.len().min(left);
        let (first, second) = bytes.split_at_mut(middle);
        file.read_exact_at(first, at)?;
        if !second.is_empty() {
            file.read_exact_at(second, self.file_offset(position + left as u64).0)?;
        }
        Ok(())
    }
}

/// Reads frames one after the other.
pub(crate) struct FrameReader<'a> {
    area: RedoArea,
    file: &'a dyn File,
    /// The number of the durable checkpoint.
    checkpoint: u64,
    position: u64,
}

impl<'a> FrameReader<'a> {
    pub(crate) fn new(area: RedoArea, file: &'a dyn File, checkpoint: u64) -> FrameReader<'a> {
        FrameReader { area, file, checkpoint, position: area.from }
    }

    /// Where the next frame begins, or will.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// The body of the next frame. Nothing at the end.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] if frames that were acknowledged are damaged, or belong to a checkpoint
    /// that is later than the durable one, whose meta page is then lost.
    pub(crate) fn next(&mut self) -> Result<Option<Vec<u8>>> {
        let Some((head, body)) = self.whole()? else {
            self.verify_end()?;
            return Ok(None);
        };
        if head.checkpoint > self.checkpoint {
            return self.corrupt("redo records of a later checkpoint than the meta pages know");
        }
        self.position += head.frame_bytes();
        Ok(Some(body))
    }

    fn whole(&self) -> Result<Option<(RedoFrameHeader, Vec<u8>)>> {
        let mut sector = [0; SECTOR_BYTES];
        self.area.read(self.file, self.position, &mut sector)?;
        let head = RedoFrameHeader::decode(&sector).filter(|head| {
            let is_fitting = head.frame_bytes() <= self.area.frame_bytes_max();
            head.position == self.position && is_fitting
        });
        let Some(head) = head else { return Ok(None) };
        let mut frame = vec![0; head.frame_bytes() as usize];
        self.area.read(self.file, self.position, &mut frame)?;
        Ok(head.body(&frame).map(|body| (head, body)))
    }

    /// Proves that no frame was ever appended behind the position.
    fn verify_end(&self) -> Result<()> {
        let mut bytes = vec![0; 64 << 10];
        let end = self.position + self.area.frame_bytes_max() + SECTOR_BYTES as u64;
        let mut at = self.position;
        while at < end {
            let len = bytes.len().min((end - at) as usize);
            self.area.read(self.file, at, &mut bytes[..len])?;
            let heads = bytes[..len].chunks(SECTOR_BYTES).filter_map(RedoFrameHeader::decode);
            if heads.into_iter().any(|head| head.position > self.position) {
                return self.corrupt("redo record with others behind it");
            }
            at += len as u64;
        }
        Ok(())
    }

    fn corrupt<T>(&self, what: &'static str) -> Result<T> {
        Err(Error::Corrupt { page: self.area.unit(self.position), what })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use flotilla_vfs::fault::FaultFs;
    use flotilla_vfs::{FileSystem, OpenMode};

    use super::*;
    use crate::redo::frame;

    const AREA: RedoArea = RedoArea { span: Span { start: 3, units: 4 }, from: 0 };

    fn file() -> Arc<dyn File> {
        let file = FaultFs::new(1).open(Path::new("/pages"), OpenMode::CreateNew).unwrap();
        file.write_at(&[0xff; 8 * UNIT_BYTES], 0).unwrap();
        AREA.wipe(&*file, |_| Ok(())).unwrap();
        file
    }

    /// Appends frames with bodies of these lengths; returns where each begins, and the end.
    fn append(file: &dyn File, from: u64, checkpoint: u64, bodies: &[usize]) -> Vec<u64> {
        let mut positions = vec![from];
        let mut out = frame::SectorBuffer::default();
        for &len in bodies {
            let position = *positions.last().unwrap();
            frame::encode(&mut out, position, checkpoint, 0, &vec![len as u8; len]);
            AREA.append(file, position, out.bytes()).unwrap();
            positions.push(position + out.bytes().len() as u64);
        }
        positions
    }

    fn read(file: &dyn File, from: u64, checkpoint: u64) -> Result<Vec<usize>> {
        let mut frames = FrameReader::new(RedoArea { from, ..AREA }, file, checkpoint);
        std::iter::from_fn(|| frames.next().transpose()).map(|body| Ok(body?.len())).collect()
    }

    #[test]
    fn the_ring_goes_round() {
        let file = file();
        let bodies = [100, 4000, 0, 3000, 700];
        let mut from = 0;
        for lap in 0..20 {
            let end = *append(&*file, from, 1, &bodies).last().unwrap();
            assert_eq!(read(&*file, from, 1).unwrap(), bodies, "lap {lap}");
            from = end;
            assert_eq!(read(&*file, from, 1).unwrap(), [0; 0]);
        }
        let mut around = [0; 2 * UNIT_BYTES];
        file.read_exact_at(&mut around[..UNIT_BYTES], 2 * UNIT_BYTES as u64).unwrap();
        file.read_exact_at(&mut around[UNIT_BYTES..], 7 * UNIT_BYTES as u64).unwrap();
        assert_eq!(around, [0xff; 2 * UNIT_BYTES], "it keeps to its units");
    }

    #[test]
    fn torn_end_is_none_and_damage_before_it_is_an_error() {
        let bodies = [100, 2000, 4000, 0, 3000];
        let file = file();
        let positions = append(&*file, 512, 1, &bodies);
        for sector in (512..*positions.last().unwrap()).step_by(SECTOR_BYTES) {
            let mut kept = [0; SECTOR_BYTES];
            AREA.read(&*file, sector, &mut kept).unwrap();
            file.write_at(&[0; SECTOR_BYTES], AREA.file_offset(sector).0).unwrap();
            let found = read(&*file, 512, 1);
            if sector >= positions[4] {
                assert_eq!(found.unwrap(), bodies[..4]);
            } else {
                assert!(matches!(found, Err(Error::Corrupt { page: 3.., .. })), "at {sector}");
            }
            file.write_at(&kept, AREA.file_offset(sector).0).unwrap();
        }
        assert_eq!(read(&*file, 512, 1).unwrap(), bodies);
    }

    #[test]
    fn frames_of_a_later_checkpoint_are_an_error() {
        let file = file();
        append(&*file, 0, 7, &[10, 10]);
        assert_eq!(read(&*file, 0, 7).unwrap(), [10, 10]);
        assert_eq!(read(&*file, 0, 8).unwrap(), [10, 10]);
        assert!(matches!(read(&*file, 0, 6), Err(Error::Corrupt { .. })));
        // A ring later: what the lost meta page was to name is no torn end.
        append(&*file, AREA.bytes(), 8, &[10]);
        assert!(matches!(read(&*file, 0, 7), Err(Error::Corrupt { .. })));
    }
}
