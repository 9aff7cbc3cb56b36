import sys, collections
import numpy as np
from concurrent.futures import ProcessPoolExecutor
from benchmarks.verdicts.scenarios import SCENARIOS, Noise, noise
from pytest_llmbench.judging.interval.steady import steady_state, BETWEEN_RUNS
D=(0.005,0.01,0.02,0.05)
def cell(args):
    i,n,cv,phi,R,seed=args
    sc=SCENARIOS[i]; rng=np.random.default_rng([seed,i,n,int(cv*1e5),int(phi*100)])
    k=Noise(cv=cv,phi=phi); runs=sc.make(rng,noise(rng,sc,k,R,n),k)
    wrong=collections.Counter(); inc=collections.Counter(); why=collections.Counter()
    for row,truth in zip(runs.seconds.tolist(),runs.truth.tolist()):
        s=steady_state(row,skip=5,between_runs=BETWEEN_RUNS if sc.system else None)
        for d in D:
            for sign in (-1,1):
                theta=truth*(1+sign*d); v=s.decide(theta)
                if v==("fast_enough" if sign<0 else "too_slow"): wrong[sign*d]+=1
                elif v not in("fast_enough","too_slow"): inc[sign*d]+=1; why[v]+=1
    return sc.name,n,cv,phi,{k:v/R for k,v in wrong.items()},{d:(inc[d]+inc[-d])/2/R for d in D}
if __name__=="__main__":
    R=int(sys.argv[1]); ns=[int(x) for x in sys.argv[2].split(",")]
    jobs=[(i,n,cv,phi,R,1) for n in ns for i in range(len(SCENARIOS)) for cv in (.0005,.005,.02,.06) for phi in (0,.5,.9)]
    by=collections.defaultdict(list)
    with ProcessPoolExecutor(2) as ex:
        for r in ex.map(cell,jobs,chunksize=4): by[r[0]].append(r)
    for name,rs in by.items():
        for n in ns:
            mine=[r for r in rs if r[1]==n]
            worst=max(mine,key=lambda r:max(r[4].values(),default=0))
            mean=np.mean([sum(r[4].values())/8 for r in mine])
            i05=np.mean([r[5][.01] for r in mine if r[2]<.01])
            print(f"{name:24s} n={n:5d} worst {100*max(worst[4].values(),default=0):6.2f}% (cv {worst[2]} phi {worst[3]} d {max(worst[4],key=worst[4].get) if worst[4] else ''}) mean {100*mean:.3f}%  inconclusive(cv<=.5%,d=1%) {100*i05:.0f}%")
