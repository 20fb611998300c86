//! A hub that is bad at random: of so many answers some end early, some are wrong, some stand still.

use std::time::Duration;

use super::behaviour::Behaviour;
use super::http::{Body, Response};

/// How many of a thousand answers are bad, and in which way.
#[derive(Clone, Copy, Debug, Default)]
pub struct Odds {
    /// Connections that close or reset before, within or instead of the answer; 429 and 5xx.
    pub drops: u32,
    /// Wrong bytes, wrong ranges, wrong sizes, pages and pointers in place of bytes.
    pub lies: u32,
    /// Silence before the head or within the body.
    pub stalls: u32,
}

/// Bad answers given so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Played {
    pub drops: u64,
    pub lies: u64,
    pub stalls: u64,
}

#[derive(Debug)]
pub(super) struct Chaos {
    odds: Odds,
    chance: fastrand::Rng,
    pub played: Played,
}

impl Chaos {
    pub fn new(seed: u64, odds: Odds) -> Self {
        Self { odds, chance: fastrand::Rng::with_seed(seed), played: Played::default() }
    }

    /// What becomes of this answer, if it is to be a bad one.
    pub fn next(&mut self, answer: &Response) -> Option<Behaviour> {
        let Odds { drops, lies, stalls } = self.odds;
        let drawn = self.chance.u32(0..1000);
        if drawn < drops {
            self.played.drops += 1;
            Some(self.drop(answer.body.len()))
        } else if drawn < drops + lies {
            let lie = self.lie(answer)?;
            self.played.lies += 1;
            Some(lie)
        } else if drawn < drops + lies + stalls {
            self.played.stalls += 1;
            Some(self.stall(answer.body.len()))
        } else {
            None
        }
    }

    fn drop(&mut self, body: u64) -> Behaviour {
        let after = self.chance.u64(0..=body);
        match self.chance.u8(0..7) {
            0 => Behaviour::CloseWithoutAnswer,
            1 => Behaviour::ResetWithoutAnswer,
            2 => Behaviour::ShortBody(after),
            3 => Behaviour::HonestShortBody(after),
            4 => Behaviour::ResetAfter(after),
            5 => Behaviour::too_many_requests(0),
            _ => Behaviour::status(if self.chance.bool() { 500 } else { 503 }),
        }
    }

    /// Only of a file can something be said that is wrong and looks right.
    fn lie(&mut self, answer: &Response) -> Option<Behaviour> {
        let Body::File { file, start, end, .. } = &answer.body else { return None };
        let (size, len) = (file.content.len(), end - start);
        if !(200..300).contains(&answer.status) || len < 2 {
            return None;
        }
        let some = self.chance.u64(1..len);
        Some(match self.chance.u8(0..11) {
            0 => Behaviour::FlipByte(start + some),
            1 if answer.status == 206 => Behaviour::WrongStart(some),
            2 if answer.status == 206 => Behaviour::ShiftedContentRange(some.cast_signed()),
            3 if answer.status == 206 => Behaviour::NoContentRange,
            4 if answer.status == 206 => Behaviour::WrongTotal(size + some),
            5 => Behaviour::html_page(),
            6 => Behaviour::IgnoreRange,
            7 if file.lfs => Behaviour::PointerBody,
            8 => Behaviour::Gzip,
            9 => Behaviour::Overrun(some),
            10 => Behaviour::xml_403("AccessDenied", "Access denied"),
            _ => Behaviour::LongBody(some),
        })
    }

    fn stall(&mut self, body: u64) -> Behaviour {
        match self.chance.u8(0..3) {
            0 => Behaviour::StallBeforeHeaders,
            1 => Behaviour::DelayHeaders(Duration::from_millis(self.chance.u64(0..2000))),
            _ => Behaviour::StallAfter(self.chance.u64(0..=body)),
        }
    }
}
