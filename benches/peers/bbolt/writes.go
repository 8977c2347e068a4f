// Puts and deletes, as in src/bin/pages/loads/writes.rs and scattered.rs.

package main

import (
	"fmt"
	"sync"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
)

const (
	atATime = 1000
	// Two of these fill a page.
	loneValueBytes = 1950
	lonePerPage    = 2
	// New keys come behind all others.
	behind = 1 << 40
)

// cpu is the processor time that this process has used so far, its collector of garbage included.
func cpu() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func (s *store) fill(l *load, o *outcome) error {
	begin := time.Now()
	values := newValues()
	end := l.First + l.Keys
	for first := l.First; first < end; first += atATime {
		err := s.write(func(b *bolt.Bucket) error {
			for number := first; number < min(first+atATime, end); number++ {
				place := key(number)
				if l.InOrder {
					place = keyInOrder(number)
				}
				if err := b.Put(place, values.value(number, 0, l.ValueBytes)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if err := s.settle(); err != nil {
		return err
	}
	o.Figures["seconds"] = time.Since(begin).Seconds()
	return s.status(o)
}

func (s *store) commits(l *load, o *outcome) error {
	chance, values := newChance(l.Seed), newValues()
	times := make([]uint64, 0, l.Commits)
	usedBefore, begin := cpu(), time.Now()
	for commit := range l.Commits {
		one := time.Now()
		err := s.write(func(b *bolt.Bucket) error {
			for range l.Puts {
				number := chance.below(l.Keys)
				value := values.value(number, l.Seed<<32|commit, l.ValueBytes)
				if err := b.Put(key(number), value); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		times = append(times, uint64(time.Since(one)))
	}
	unsettled, unsettledUsed := time.Since(begin), cpu()-usedBefore
	if err := s.settle(); err != nil {
		return err
	}
	elapsed, used := time.Since(begin), cpu()-usedBefore
	all := float64(l.Commits * l.Puts)
	o.Figures["cpu us/put"] = used.Seconds() * 1e6 / all
	o.Figures["cpu us/put, before the last sync"] = unsettledUsed.Seconds() * 1e6 / all
	o.Figures["puts/s"] = all / elapsed.Seconds()
	o.Figures["puts/s, before the last sync"] = all / unsettled.Seconds()
	o.addTimes("commit", times)
	return nil
}

// durableCommits makes one commit for each write, or lets bbolt put the writes of several threads into
// one as soon as all of them wait: its Batch with a size of as many.
func (s *store) durableCommits(l *load, o *outcome) error {
	s.db.MaxBatchSize = int(l.Threads)
	s.db.MaxBatchDelay = time.Millisecond
	begin := time.Now()
	end := begin.Add(time.Duration(l.Ms) * time.Millisecond)
	times, err := inThreads(l.Threads, func(thread uint64) ([]uint64, error) {
		chance, values := newChance(l.Seed<<8|thread), newValues()
		var times []uint64
		for time.Now().Before(end) {
			number := chance.below(l.Keys)
			version := (l.Seed<<8|thread)<<24 | uint64(len(times))
			place, value := key(number), values.value(number, version, l.ValueBytes)
			one := time.Now()
			put := func(tx *bolt.Tx) error { return tx.Bucket(bucketName).Put(place, value) }
			commit := s.db.Update
			if l.Batch {
				commit = s.db.Batch
			}
			if err := commit(put); err != nil {
				return nil, err
			}
			times = append(times, uint64(time.Since(one)))
		}
		return times, nil
	})
	if err != nil {
		return err
	}
	o.Figures["commits/s"] = float64(len(times)) / time.Since(begin).Seconds()
	o.addTimes("commit", times)
	return nil
}

// inThreads puts together what each of so many goroutines has returned.
func inThreads(threads uint64, work func(uint64) ([]uint64, error)) ([]uint64, error) {
	results := make([][]uint64, threads)
	errors := make([]error, threads)
	var running sync.WaitGroup
	for thread := range threads {
		running.Go(func() { results[thread], errors[thread] = work(thread) })
	}
	running.Wait()
	var all []uint64
	for thread := range threads {
		if errors[thread] != nil {
			return nil, errors[thread]
		}
		all = append(all, results[thread]...)
	}
	return all, nil
}

// scatter puts twice as many pages of two values each as pages are asked for, and deletes the values of
// every second one.
func (s *store) scatter(l *load, o *outcome) error {
	keys := 2 * lonePerPage * l.Pages
	fill := load{Keys: keys, ValueBytes: loneValueBytes, InOrder: true}
	if err := s.fill(&fill, o); err != nil {
		return err
	}
	for first := uint64(0); first < keys; first += 2 * atATime {
		err := s.write(func(b *bolt.Bucket) error {
			for number := first; number < min(first+2*atATime, keys); number++ {
				if number%(2*lonePerPage) >= lonePerPage {
					continue
				}
				if err := b.Delete(keyInOrder(number)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if err := s.settle(); err != nil {
		return err
	}
	return s.status(o)
}

func (s *store) large(l *load, o *outcome) error {
	values := newValues()
	var times []uint64
	usedBefore, begin := cpu(), time.Now()
	end := begin.Add(time.Duration(l.Ms) * time.Millisecond)
	for time.Now().Before(end) && uint64(len(times)) < l.Puts {
		number := behind + l.First + uint64(len(times))
		value := values.value(number, 0, l.ValueBytes)
		one := time.Now()
		err := s.write(func(b *bolt.Bucket) error { return b.Put(keyInOrder(number), value) })
		if err != nil {
			return err
		}
		times = append(times, uint64(time.Since(one)))
	}
	elapsed := time.Since(begin)
	if err := s.settle(); err != nil {
		return err
	}
	used := cpu() - usedBefore
	count := float64(len(times))
	o.Figures["puts"] = count
	o.Figures["puts/s"] = count / elapsed.Seconds()
	o.Figures["puts/s with the last sync"] = count / time.Since(begin).Seconds()
	o.Figures["cpu us/put"] = used.Seconds() * 1e6 / count
	o.addTimes("commit", times)
	return nil
}

// freeSpace adds up the pages of the freelist that each commit has written.
func (s *store) freeSpace(l *load, o *outcome) error {
	chance, values := newChance(l.Seed), newValues()
	bytes := 0
	for commit := range l.Commits {
		err := s.write(func(b *bolt.Bucket) error {
			for range l.Puts {
				number := 4*chance.below(l.Keys/4) + 3
				value := values.value(number, commit, l.ValueBytes)
				if err := b.Put(keyInOrder(number), value); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		bytes += s.db.Stats().FreelistInuse
	}
	if bytes == 0 {
		return fmt.Errorf("the freelist has no size")
	}
	o.Figures["bytes for free space a commit"] = float64(bytes) / float64(l.Commits)
	return nil
}

// writeOn never returns unless something fails; it says a line after each thousand commits.
func (s *store) writeOn(l *load) error {
	for round := uint64(1); ; round++ {
		chance, values := newChance(round), newValues()
		for commit := range uint64(1000) {
			err := s.write(func(b *bolt.Bucket) error {
				for range 100 {
					number := chance.below(l.Keys)
					value := values.value(number, round<<32|commit, l.ValueBytes)
					if err := b.Put(keyInOrder(number), value); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		fmt.Println("{}")
	}
}
