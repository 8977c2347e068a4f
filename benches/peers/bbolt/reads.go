// Gets, scans, and reads and writes beside scans, as in src/bin/pages/loads/reads.rs and beside.rs.

package main

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"
)

// getsEach are made in one read transaction.
const getsEach = 1000

func (s *store) gets(l *load, o *outcome) error {
	usedBefore, begin := cpu(), time.Now()
	end := begin.Add(time.Duration(l.Ms) * time.Millisecond)
	counts, err := inThreads(l.Threads, func(thread uint64) ([]uint64, error) {
		chance := newChance(l.Seed<<8 | thread)
		count := uint64(0)
		for time.Now().Before(end) {
			err := s.read(func(b *bolt.Bucket) error {
				for range getsEach {
					number := chance.below(l.Keys)
					value := b.Get(key(number))
					if len(value) < headBytes || binary.LittleEndian.Uint64(value) != number {
						return fmt.Errorf("key %d has not its value", number)
					}
				}
				return nil
			})
			if err != nil {
				return nil, err
			}
			count += getsEach
		}
		return []uint64{count}, nil
	})
	if err != nil {
		return err
	}
	sum := uint64(0)
	for _, count := range counts {
		sum += count
	}
	o.Figures["gets/s"] = float64(sum) / time.Since(begin).Seconds()
	o.Figures["cpu ns/get"] = float64(cpu()-usedBefore) / float64(sum)
	return nil
}

func (s *store) scans(l *load, o *outcome) error {
	chance := newChance(l.Seed)
	usedBefore, begin := cpu(), time.Now()
	end := begin.Add(time.Duration(l.Ms) * time.Millisecond)
	count := uint64(0)
	for time.Now().Before(end) {
		err := s.read(func(b *bolt.Bucket) error {
			seen, err := scan(b, chance.below(l.Keys), l.Length)
			count += seen
			return err
		})
		if err != nil {
			return err
		}
	}
	o.Figures["keys/s"] = float64(count) / time.Since(begin).Seconds()
	o.Figures["cpu ns/key"] = float64(cpu()-usedBefore) / float64(count)
	return nil
}

func scan(b *bolt.Bucket, from, length uint64) (uint64, error) {
	cursor := b.Cursor()
	seen, right := uint64(0), uint64(0)
	for k, v := cursor.Seek(key(from)); k != nil && seen < length; k, v = cursor.Next() {
		if k[keyBytes-1] == v[0] {
			right++
		}
		seen++
	}
	if right != seen {
		return 0, fmt.Errorf("a key of a scan has not its value")
	}
	return seen, nil
}

func (s *store) prove(l *load) error {
	values := newValues()
	return s.read(func(b *bolt.Bucket) error {
		seen := uint64(0)
		cursor := b.Cursor()
		for k, v := cursor.First(); k != nil; k, v = cursor.Next() {
			if err := values.prove(k, v); err != nil {
				return err
			}
			seen++
		}
		if seen != l.Keys {
			return fmt.Errorf("%d keys of %d are there", seen, l.Keys)
		}
		return nil
	})
}

func (s *store) beside(l *load, o *outcome) error {
	var ended atomic.Bool
	over := make(chan struct{})
	results := make(chan error)
	var scans atomic.Uint64
	for one := range l.Scanners {
		go func() { results <- s.scanOn(l, one, &ended, &scans) }()
	}
	var writes, reads []uint64
	go func() {
		var err error
		writes, err = s.writePaced(l, over)
		results <- err
	}()
	go func() {
		var err error
		reads, err = s.readPaced(l, over)
		results <- err
	}()
	time.Sleep(time.Duration(l.Ms) * time.Millisecond)
	ended.Store(true)
	close(over)
	var failed error
	for range l.Scanners + 2 {
		if err := <-results; err != nil {
			failed = err
		}
	}
	o.Figures["scans"] = float64(scans.Load())
	o.Figures["writes"] = float64(len(writes))
	o.addTimes("write", writes)
	o.addTimes("read", reads)
	return failed
}

func (s *store) scanOn(l *load, one uint64, ended *atomic.Bool, scans *atomic.Uint64) error {
	chance := newChance(l.Seed<<8 | one)
	for !ended.Load() {
		err := s.read(func(b *bolt.Bucket) error {
			for range l.ScansEach {
				if _, err := scan(b, chance.below(l.Keys), l.Length); err != nil {
					return err
				}
				scans.Add(1)
				if ended.Load() {
					break
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *store) writePaced(l *load, over chan struct{}) ([]uint64, error) {
	chance, values := newChance(l.Seed), newValues()
	count := uint64(0)
	return paced(l.Writes, over, func() (time.Duration, error) {
		number := l.First + count
		place := keyInOrder(number)
		if !l.Grow {
			number = chance.below(l.Keys)
			place = key(number)
		}
		count++
		value := values.value(number, l.Seed<<32|count, l.ValueBytes)
		begin := time.Now()
		err := s.write(func(b *bolt.Bucket) error { return b.Put(place, value) })
		return time.Since(begin), err
	})
}

func (s *store) readPaced(l *load, over chan struct{}) ([]uint64, error) {
	chance := newChance(l.Seed + 1)
	return paced(l.Reads, over, func() (time.Duration, error) {
		begin := time.Now()
		err := s.read(func(b *bolt.Bucket) error {
			_, err := scan(b, chance.below(l.Keys), 10)
			return err
		})
		return time.Since(begin), err
	})
}

// paced does it so many times a second until the channel is closed. Those that should have begun while
// one lasted count as waiting.
func paced(perSecond uint64, over chan struct{}, one func() (time.Duration, error)) ([]uint64, error) {
	pause := time.Second / time.Duration(max(perSecond, 1))
	var times []uint64
	next := time.Now()
	for {
		next = next.Add(pause)
		if now := time.Now(); next.Before(now) {
			next = now
		}
		select {
		case <-over:
			return times, nil
		case <-time.After(time.Until(next)):
		}
		took, err := one()
		if err != nil {
			return nil, err
		}
		for left := took; left > 0; left -= pause {
			times = append(times, uint64(left))
		}
	}
}
